"""The contract of a layout: pieces in logical order in, a physical prompt out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from minipic_sdk.layout import ControlTokens, Placement


class Piece(NamedTuple):
    """A run of tokens of the composed prompt, in the order in which the model reads them."""

    kind: Literal["text", "span"]
    token_ids: list[int]
    name: str = ""
    public: bool = False


class Rules(NamedTuple):
    """What a layout needs to know about the model."""

    control: ControlTokens
    block_size: int  # tokens per KV block
    anchor: Sequence[int]  # the profile's


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A physical prompt and what its request must say about it (see ``RequestMeta``)."""

    token_ids: list[int]
    spans: tuple[int, ...] = ()  # indices into the pieces, one per SSEP segment in physical order
    anchor: tuple[int, ...] = ()
    placements: tuple[Placement, ...] | None = None
    head_at: int = 0


class PromptLayout(Protocol):
    """One way to lay a prompt out."""

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """Arrange ``pieces``; the last one is text."""
        ...


def pack(pieces: Sequence[Piece], rules: Rules, anchor: Sequence[int]) -> Arrangement:
    """Pieces in their order, each behind its control token and padded to a block boundary (paper, section 3.1)."""
    control, size = rules.control, rules.block_size
    ids: list[int] = []
    spans: list[int] = []
    for i, piece in enumerate(pieces):
        if i or piece.kind == "span":
            ids += [control.pad] * (-len(ids) % size)
            ids.append(control.ssep if piece.kind == "span" else control.pdep)
        if piece.kind == "span":
            spans.append(i)
        ids += piece.token_ids
    return Arrangement(ids, tuple(spans), tuple(anchor))
