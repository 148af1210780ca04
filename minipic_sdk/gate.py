"""The gate: what `minipic doctor` measured about a model, and the cheapest layout that leaves its answers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from minipic_sdk.errors import ProfileError

Verdict = Literal["block", "anchored", "epic", "prefix"]
GATE_FILE: Final = "minipic_gate.json"  # beside the model's config.json


@dataclass(frozen=True)
class Gate:
    """A verdict and the numbers behind it."""

    verdict: Verdict  # the cheapest safe layout; "prefix": none that reuses spans is
    items: int = 0  # questions that it was measured on
    anchor: int | None = None  # tokens of the head to use as anchor; None: the profile's
    k: int | None = None  # tokens of every document that EPIC computes again; None: its default
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]], repr=False)
    """Per method: kl, logprob, exact_match, ... as differences from full attention; see docs/layouts.md."""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ProfileError(f"unknown verdict {self.verdict!r}: one of {', '.join(get_args(Verdict))}")

    def describe(self) -> str:
        """One line for people."""
        said = "only prefix caching is safe" if self.verdict == "prefix" else f"{self.verdict} is safe"
        kl = self.numbers.get(self.verdict, {}).get("kl")
        return f"{said} for this model ({self.items} questions{'' if kl is None else f', KL {kl:.3f}'})"

    def to_json(self) -> dict[str, Any]:
        """What ``gate`` of the profile and the gate file hold."""
        body: dict[str, Any] = {"verdict": self.verdict, "items": self.items}
        if self.anchor is not None:
            body["anchor"] = self.anchor
        if self.k is not None:
            body["k"] = self.k
        return {**body, "numbers": {name: dict(row) for name, row in self.numbers.items()}}

    @classmethod
    def from_json(cls, body: object) -> "Gate":
        """The inverse of ``to_json``; unknown keys are ignored.

        Raises:
            ProfileError: not a gate.
        """
        if not isinstance(body, Mapping):
            raise ProfileError("the gate is not a JSON object")
        fields = cast("Mapping[str, Any]", body)
        numbers = cast("Mapping[str, Mapping[str, float]]", fields.get("numbers", {}))
        try:
            return cls(
                verdict=fields["verdict"],
                items=int(fields.get("items", 0)),
                anchor=None if fields.get("anchor") is None else int(fields["anchor"]),
                k=None if fields.get("k") is None else int(fields["k"]),
                numbers={name: {k: float(v) for k, v in row.items()} for name, row in numbers.items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"the gate is not readable: {error!r}") from None
