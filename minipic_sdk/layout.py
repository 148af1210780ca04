"""The token layout: which tokens of a prompt are seen, by whom, and at which position.

One parser serves the SDK, the block hasher and the attention workers, so they can't disagree. A prompt is cut
into *segments* at blocks that begin with a control token (DESIGN section 2; MiniPIC paper, section 3):

* head: what stands before the first control token; ordinary, prefix-cached text,
* span: an SSEP block up to the next control block; sees only the anchor and itself,
* dependent: a PDEP block up to the next control block; sees everything visible that logically precedes it.

Two positions exist. *Physical*: the index in the token list, hence KV block and slot. *Logical*: what RoPE and the
causal order use; control tokens and padding have none. By default logical follows physical order; ``placements``
sets it free (DESIGN section 6, order-free requests).

This module has no dependency and costs microseconds per block: it runs for every span request in the engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from operator import sub
from typing import Any, Literal, NamedTuple, cast

from minipic_sdk.errors import LayoutError

SegmentKind = Literal["head", "span", "dependent"]


class ControlTokens(NamedTuple):
    """The three control token ids of a model (paper, section 3.1)."""

    ssep: int  # as first token of a block: a span starts
    pdep: int  # as first token of a block: a dependent segment starts
    pad: int  # fills a segment to the end of its last block


class Placement(NamedTuple):
    """Where a segment stands logically, when that isn't its physical order."""

    logical: int  # logical position of the segment's first visible token
    hidden: int = 0  # leading visible tokens that no other segment sees (EPIC's stale copies)


class Segment(NamedTuple):
    """One segment; every range is half-open and in physical token indices."""

    kind: SegmentKind
    start: int  # block-aligned
    stop: int  # start of the next segment, or the prompt's length
    visible_start: int  # behind the control token
    visible_stop: int  # before the padding
    logical: int  # logical position of the token at visible_start
    hidden: int  # leading visible tokens that other segments don't see

    @property
    def num_visible(self) -> int:
        """Visible tokens."""
        return self.visible_stop - self.visible_start

    @property
    def shown_start(self) -> int:
        """Physical index of the first token that other segments see."""
        return self.visible_start + self.hidden

    @property
    def logical_stop(self) -> int:
        """Logical position behind the last visible token."""
        return self.logical + self.num_visible

    @property
    def logical_shown(self) -> int:
        """Logical position of the first token that other segments see."""
        return self.logical + self.hidden


class Cut(NamedTuple):
    """Where its control tokens cut a prompt: one entry per segment, in physical order."""

    starts: list[int]
    visible_stops: list[int]


@dataclass(frozen=True, slots=True)
class Layout:
    """The parsed prompt: its segments in physical order."""

    segments: tuple[Segment, ...]
    block_size: int  # tokens per KV block
    anchor: int  # length of the anchor in tokens: the first visible tokens of the head
    head_at: int  # physical start of the head; 0 unless the engine moved cached spans before it
    num_tokens: int  # physical length of the prompt

    @property
    def num_visible(self) -> int:
        """Visible tokens of the whole prompt."""
        return sum(s.num_visible for s in self.segments)

    @property
    def has_control(self) -> bool:
        """Whether anything distinguishes this prompt from a plain one."""
        return any(s.kind != "head" for s in self.segments)

    @property
    def generates(self) -> bool:
        """Whether tokens may be generated behind it (it ends in a head or dependent segment)."""
        return self.segments[-1].kind != "span"

    def canonical(self, segment: Segment) -> int:
        """Position at which the keys of ``segment`` are rotated when they are stored.

        A span's keys stand right behind the anchor, wherever the span is used; all other keys at their logical
        position, which their block hash covers.
        """
        return self.anchor if segment.kind == "span" else segment.logical

    def context(self, index: int) -> list[Segment]:
        """Other segments that segment ``index`` sees, in physical order.

        A span sees the anchor only, which the caller adds; a head sees nothing but itself.
        """
        me = self.segments[index]
        if me.kind != "dependent":
            return []
        return [
            s
            for i, s in enumerate(self.segments)
            if s.logical + s.hidden < me.logical and s.visible_start + s.hidden < s.visible_stop and i != index
        ]


def parse_layout(
    token_ids: Sequence[int],
    *,
    control: ControlTokens,
    block_size: int,
    anchor: Sequence[int] = (),
    placements: Sequence[Placement] | None = None,
    head_at: int = 0,
    checked: bool = False,
    cut: Cut | None = None,
) -> Layout:
    """Cut a physical prompt into segments and check every rule of the layout.

    Args:
        token_ids: the physical prompt, control tokens and padding included; not empty.
        control: ids of SSEP, PDEP and PAD.
        block_size: tokens per KV block.
        anchor: token ids every span sees; must be the prompt's first visible tokens.
        placements: one per segment, in physical order; ``None`` for logical = physical order.
        head_at: block-aligned index at which the head begins; other than 0 it needs ``placements``.
        checked: these ids passed here before, so no control token is looked for where none may be; that is half of
            the time for a long prompt.
        cut: of these very ids, from somebody who applied every rule about control tokens and found none broken; the
            ids are not looked at for that.

    Raises:
        LayoutError: names the token index and the rule that it breaks.
    """
    ids = token_ids if isinstance(token_ids, list) else list(token_ids)
    starts = cut.starts if cut else _segment_starts(ids, control, block_size, head_at, checked)
    if head_at and placements is None:
        raise LayoutError(head_at, "a head that isn't first needs placements")
    if placements is not None and len(placements) != len(starts):
        raise LayoutError(0, f"{len(placements)} placements for {len(starts)} segments")
    # A prompt may have a thousand segments: columns, so that no step of Python is taken for each of them.
    stops = [*starts[1:], len(ids)]
    of: dict[int, SegmentKind] = {control.pdep: "dependent", control.ssep: "span"}
    kinds = [of.get(ids[start], "head") for start in starts]
    firsts = [start if kind == "head" else start + 1 for start, kind in zip(starts, kinds, strict=True)]
    lasts = cut.visible_stops if cut else _visible_stops(ids, firsts, stops, control.pad, block_size, checked)
    logical: Iterable[int] = accumulate(map(sub, lasts, firsts), initial=0)
    hidden: Iterable[int] = repeat(0)
    if placements is not None:
        logical, hidden = zip(*placements, strict=True)
    columns = zip(kinds, starts, stops, firsts, lasts, logical, hidden, strict=False)
    new = cast("Any", tuple).__new__  # Segment._make is a call of Python for each
    segments: tuple[Segment, ...] = tuple(map(new, repeat(Segment), columns))
    tail = segments[-1]
    if tail.kind != "span" and (tail.visible_stop != len(ids) or not tail.num_visible):
        raise LayoutError(tail.visible_stop, "a prompt that generates must end in a visible token")
    head = next((s for s in segments if s.kind == "head"), None)
    _check_anchor(ids, anchor, (head.visible_start, head.visible_stop) if head else (head_at, head_at))
    if placements is not None:
        _check_placements(segments, len(anchor))
    return Layout(segments, block_size, len(anchor), head_at, len(ids))


def _segment_starts(ids: list[int], control: ControlTokens, block_size: int, head_at: int, checked: bool) -> list[int]:
    if not ids:
        raise LayoutError(0, "the prompt is empty")
    if head_at % block_size or not 0 <= head_at < len(ids):
        raise LayoutError(head_at, "the head must start at a block of the prompt")
    marks = (control.ssep, control.pdep)
    firsts = ids[::block_size]
    starts = [i * block_size for i, token in enumerate(firsts) if token in marks]
    for mark, name in zip(marks, ("SSEP", "PDEP"), strict=True):
        if not checked and ids.count(mark) != firsts.count(mark):
            index = next(i for i, token in enumerate(ids) if token == mark and i % block_size)
            raise LayoutError(index, f"{name} inside a block: it must be a block's first token")
    starts = sorted({head_at, *starts})
    if starts[0]:
        raise LayoutError(0, "the prompt must start with its head or a control token")
    return starts


def _visible_stops(
    ids: list[int], firsts: list[int], stops: list[int], pad: int, block_size: int, checked: bool
) -> list[int]:
    lasts: list[int] = []
    for first, stop in zip(firsts, stops, strict=True):
        last = stop
        while last > first and ids[last - 1] == pad:
            last -= 1
        if stop - last >= block_size:
            raise LayoutError(last, "padding must be shorter than a block")
        lasts.append(last)
    if not checked and sum(stops) - sum(lasts) != ids.count(pad):
        stray = next(i for at, last in zip(firsts, lasts, strict=True) for i in range(at, last) if ids[i] == pad)
        raise LayoutError(stray, "PAD before the end of a segment")
    return lasts


def _check_anchor(ids: list[int], anchor: Sequence[int], head: tuple[int, int]) -> None:
    first, last = head
    opening = ids[first : min(last, first + len(anchor))]
    if opening != list(anchor):
        wrong = next((i for i, t in enumerate(anchor) if i >= len(opening) or opening[i] != t), 0)
        raise LayoutError(first + wrong, "the prompt's first visible tokens must be the declared anchor")


def _check_placements(segments: Sequence[Segment], anchor: int) -> None:
    for s in segments:
        if not 0 <= s.hidden <= s.num_visible:
            raise LayoutError(s.start, f"hidden={s.hidden} of {s.num_visible} visible tokens")
        if s.kind != "span" and s.hidden:
            raise LayoutError(s.start, "only a span can hide tokens")
        lowest = anchor if s.kind == "span" else 0
        if s.logical < lowest:
            raise LayoutError(s.start, f"logical position {s.logical} is before {lowest}")
        if s.kind == "head" and s.logical:
            raise LayoutError(s.start, "the head's logical position is 0")
    shown = sorted((s for s in segments if s.shown_start < s.visible_stop), key=lambda s: s.logical_shown)
    for a, b in pairwise(shown):
        if a.logical_stop > b.logical_shown:
            raise LayoutError(b.start, f"logical ranges overlap with the segment at token {a.start}")
    late: Segment | None = None  # of the segments physically behind, the one that is shown first
    for s in reversed(segments):
        if s.kind == "dependent" and late is not None and late.logical_shown < s.logical:
            raise LayoutError(s.start, f"it needs the segment at token {late.start}, which comes physically later")
        if s.shown_start < s.visible_stop and (late is None or s.logical_shown < late.logical_shown):
            late = s
    tail = segments[-1]
    if tail.kind != "span" and any(s.logical_stop > tail.logical for s in segments[:-1]):
        raise LayoutError(tail.start, "the last segment must also be logically last")
