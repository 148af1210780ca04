"""The contract of a layout: pieces in logical order in, a physical prompt out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar, Literal, NamedTuple, Protocol

from minipic_sdk.documents import Document
from minipic_sdk.errors import InputError
from minipic_sdk.gate import Gate
from minipic_sdk.layout import ControlTokens, Placement, SegmentKind

Base = Literal["anchored", "block"]
"""What spans see besides themselves: an anchor, or nothing."""

Anchor = int | Literal["head"] | None
"""How much of the head is the anchor: tokens, all of it, or (``None``) what the profile says."""


class Piece(NamedTuple):
    """A run of tokens of the composed prompt, in the order in which the model reads them."""

    kind: Literal["text", "span"]
    token_ids: list[int]
    name: str = ""
    public: bool = False
    document: Document | None = None  # what it was made of, for layouts that know more about some documents


class Rules(NamedTuple):
    """What a layout needs to know about the model."""

    control: ControlTokens
    block_size: int  # tokens per KV block
    anchor: Sequence[int]  # the profile's
    gate: Gate | None = None  # what `minipic doctor` found out about the model
    encode: Callable[[str], list[int]] | None = None  # tokens of a text on its own


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A physical prompt and what its request must say about it (see ``RequestMeta``)."""

    token_ids: list[int]
    spans: tuple[int, ...] = ()  # indices into the pieces, one per SSEP segment in physical order
    anchor: tuple[int, ...] = ()
    placements: tuple[Placement, ...] | None = None
    head_at: int = 0
    layout: str = ""  # name of the layout that made it, where another one was asked for
    reason: str = ""  # and why


class PromptLayout(Protocol):
    """One way to lay a prompt out; its options are its fields."""

    name: ClassVar[str]  # what ``Prompt.layout`` says

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """Arrange ``pieces``; the last one is text.

        Raises:
            InputError: the layout's options don't fit the pieces.
        """
        ...


class Part(NamedTuple):
    """A segment to be: its tokens and where they stand logically."""

    kind: SegmentKind
    token_ids: list[int]
    logical: int  # position of its first token
    hidden: int = 0  # leading tokens that no other part sees
    piece: int = -1  # index of the span's piece


def plain(pieces: Sequence[Piece]) -> Arrangement:
    """The bare prompt."""
    return Arrangement([token for piece in pieces for token in piece.token_ids])


def pack(pieces: Sequence[Piece], rules: Rules, anchor: Sequence[int]) -> Arrangement:
    """Pieces in their order, each behind its control token and padded to a block boundary (paper, section 3.1)."""
    control, size = rules.control, rules.block_size
    ids: list[int] = []
    spans: list[int] = []
    for i, piece in enumerate(pieces):
        goes_on = piece.kind == "text" and (i == 0 or pieces[i - 1].kind == "text")
        if not goes_on:
            ids += [control.pad] * (-len(ids) % size)
            ids.append(control.ssep if piece.kind == "span" else control.pdep)
        if piece.kind == "span":
            spans.append(i)
        ids += piece.token_ids
    return Arrangement(ids, tuple(spans), tuple(anchor))


def place(parts: Sequence[Part], rules: Rules, anchor: Sequence[int]) -> Arrangement:
    """Parts at their logical places: head, spans, then all that depends on them in logical order.

    Whatever is cached of the head and the spans is then one contiguous hit. Dependent parts that touch become one
    segment: they see the same, and it saves a control token and padding.

    Args:
        parts: in the order in which the spans shall stand; at most one head.
        rules: of the model.
        anchor: ids that spans see; the head must begin with them.
    """
    control, size = rules.control, rules.block_size
    dependent: list[Part] = []
    for part in sorted((p for p in parts if p.kind == "dependent" and p.token_ids), key=lambda p: p.logical):
        before = dependent[-1] if dependent else None
        if before is not None and before.logical + len(before.token_ids) == part.logical:
            dependent[-1] = before._replace(token_ids=before.token_ids + part.token_ids)
        else:
            dependent.append(part)
    heads = [p for p in parts if p.kind == "head" and p.token_ids]
    spans = [p for p in parts if p.kind == "span"]
    ids: list[int] = []
    order = [*heads, *spans, *dependent]
    for part in order:
        ids += [control.pad] * (-len(ids) % size)
        if part.kind != "head":
            ids.append(control.ssep if part.kind == "span" else control.pdep)
        ids += part.token_ids
    placements = tuple(Placement(p.logical, p.hidden) for p in order)
    return Arrangement(ids, tuple(p.piece for p in spans), tuple(anchor), placements)


def head_of(pieces: Sequence[Piece]) -> list[int]:
    """Tokens of the text that the prompt opens with."""
    return [t for piece in takewhile(lambda p: p.kind == "text", pieces) for t in piece.token_ids]


def choose_anchor(pieces: Sequence[Piece], rules: Rules, base: Base, anchor: Anchor) -> list[int]:
    """The ids that spans see under these options.

    Without a wish it is the profile's anchor, or as much of it as the prompt opens with.

    Raises:
        InputError: an anchor longer than the head, or one for spans that see none.
    """
    if base not in ("anchored", "block"):
        raise InputError(f"base={base!r}: 'anchored' or 'block'")
    if base == "block":
        if anchor:
            raise InputError(f"anchor={anchor!r} with base='block', whose spans see no anchor")
        return []
    head = head_of(pieces)
    if anchor is None:
        pairs = zip(rules.anchor, head, strict=False)
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    if anchor == "head":
        return head
    if type(anchor) is not int or anchor < 0:
        raise InputError(f"anchor={anchor!r}: a number of tokens, or 'head'")
    if anchor > len(head):
        raise InputError(f"anchor={anchor}, but only {len(head)} tokens stand before the first span")
    return head[:anchor]
