"""The request metadata on the wire: one key of ``vllm_xargs``, holding a versioned JSON string.

``vllm_xargs`` takes strings, numbers and flat lists only, and arrives in vLLM as ``SamplingParams.extra_args``
(vllm/entrypoints/openai/completion/protocol.py), hence JSON inside one string.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from minipic_sdk.errors import LayoutError
from minipic_sdk.layout import ControlTokens, Cut, Layout, Placement, parse_layout

XARGS_KEY: Final = "minipic"
LAYOUT_VERSION: Final = 1

_FIELDS: Final = {"v", "anchor", "fingerprint", "public", "placements", "head_at", "names"}


@dataclass(frozen=True, slots=True)
class RequestMeta:
    """What a span request says about itself."""

    anchor: tuple[int, ...] = ()  # ids every span sees; must open the prompt
    fingerprint: str | None = None  # of the profile it was composed with; the server answers 409 if stale
    public: tuple[int, ...] = ()  # ordinals of spans (0 = first SSEP block) shared across cache salts
    placements: tuple[Placement, ...] | None = None  # per segment; None: logical = physical order
    head_at: int = 0  # physical start of the head: the engine may place cached spans before it
    names: tuple[str, ...] = ()  # one per span, for status and logs only

    def to_json(self) -> str:
        """The string to send as ``vllm_xargs["minipic"]``; defaults are left out."""
        body: dict[str, Any] = {"v": LAYOUT_VERSION}
        for key in ("anchor", "fingerprint", "public", "placements", "head_at", "names"):
            value = getattr(self, key)
            if value:
                body[key] = value
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: object) -> "RequestMeta":
        """Parse and check a string that came over the wire.

        Raises:
            LayoutError: not JSON, an unknown version or field, or a field of the wrong type.
        """
        if not isinstance(text, str):
            raise LayoutError(None, f"vllm_xargs[{XARGS_KEY!r}] must be a JSON string, got {type(text).__name__}")
        try:
            parsed: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LayoutError(None, f"vllm_xargs[{XARGS_KEY!r}] is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise LayoutError(None, f"vllm_xargs[{XARGS_KEY!r}] must hold a JSON object")
        body = cast("dict[str, Any]", parsed)
        if type(body.get("v")) is not int or body["v"] != LAYOUT_VERSION:
            raise LayoutError(None, f"unknown layout version {body.get('v')!r}: this server speaks {LAYOUT_VERSION}")
        if unknown := body.keys() - _FIELDS:
            raise LayoutError(None, f"unknown field {min(unknown)!r} in the request metadata")
        fingerprint = body.get("fingerprint")
        if fingerprint is not None:
            fingerprint = _text(fingerprint, "fingerprint")
        head_at = body.get("head_at", 0)
        if type(head_at) is not int:
            raise LayoutError(None, "head_at must be an integer")
        raw = body.get("placements")
        return cls(
            anchor=_ints(body, "anchor"),
            fingerprint=fingerprint,
            public=_ints(body, "public"),
            placements=None if raw is None else _placements(raw),
            head_at=head_at,
            names=_strings(body, "names"),
        )

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        control: ControlTokens,
        block_size: int,
        checked: bool = False,
        cut: Cut | None = None,
    ) -> Layout:
        """The layout of ``token_ids`` under this metadata; the rest as in ``parse_layout``. Raises ``LayoutError``."""
        layout = parse_layout(
            token_ids,
            control=control,
            block_size=block_size,
            anchor=self.anchor,
            placements=self.placements,
            head_at=self.head_at,
            checked=checked,
            cut=cut,
        )
        spans = [s.kind for s in layout.segments].count("span")
        if bad := [n for n in self.public if not 0 <= n < spans]:
            raise LayoutError(None, f"public names span {bad[0]}, but the prompt has {spans}")
        if len(set(self.public)) < len(self.public):
            raise LayoutError(None, "public names a span twice")
        if self.names and len(self.names) != spans:
            raise LayoutError(None, f"{len(self.names)} names for {spans} spans")
        return layout


def _ints(body: dict[str, Any], key: str) -> tuple[int, ...]:
    value = body.get(key, ())
    if not isinstance(value, list | tuple) or not all(type(v) is int for v in cast("list[object]", value)):
        raise LayoutError(None, f"{key} must be a list of integers")
    return tuple(cast("list[int]", value))


def _strings(body: dict[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key, ())
    if not isinstance(value, list | tuple):
        raise LayoutError(None, f"{key} must be a list of strings")
    return tuple(_text(v, key) for v in cast("list[object]", value))


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise LayoutError(None, f"{key} must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LayoutError(None, f"{key} must be encodable as UTF-8") from None
    return value


def _placements(value: object) -> tuple[Placement, ...]:
    if not isinstance(value, list):
        raise LayoutError(None, "placements must be a list of [logical, hidden] pairs")
    placed: list[Placement] = []
    for item in cast("list[object]", value):
        pair = cast("list[object]", item) if isinstance(item, list) else []
        if len(pair) != 2 or type(pair[0]) is not int or type(pair[1]) is not int:
            raise LayoutError(None, "placements must be a list of [logical, hidden] pairs")
        placed.append(Placement(pair[0], pair[1]))
    return tuple(placed)
