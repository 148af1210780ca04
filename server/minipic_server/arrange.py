"""Arranging a span request: cached spans first, so that vLLM's contiguous hit covers all of them (docs/adr/0002).

Only physical places change. Every segment keeps its logical position, its bytes and its hashes; a dependent segment
folds in what it sees in logical order. The order is: resident spans, head, missing spans (the longest resident prefix
first), dependent segments in logical order. A prompt that is a hit as it stands stays so. Beside a KV connector an
arrangement is for good, and what is resident now may be gone when the request is scheduled or resumed: there the head
comes first, or a span could be computed before the anchor it sees.
"""

from collections.abc import Callable, Container
from copy import copy
from dataclasses import replace
from math import inf
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from minipic_sdk.layout import Layout, Placement, Segment
from minipic_sdk.protocol import XARGS_KEY
from minipic_server.state import SpanState, pass_layout

if TYPE_CHECKING:
    from vllm.v1.request import Request


def arrange(
    request: "Request",
    state: SpanState,
    have: int,
    resident: Callable[[list[bytes]], int],
    elsewhere: Container[bytes] | None = None,
) -> bool:
    """Permute the request's segments in place so that a contiguous hit covers every resident span.

    Call it before anything of the request is scheduled.

    Args:
        request: of which nothing is scheduled.
        state: the request's.
        have: leading blocks of the prompt, as it stands, that are resident.
        resident: the same of a span.
        elsewhere: keys of spans that a KV connector may have; they go before other missing spans. ``None``: there is
            no connector.

    Returns:
        Whether anything moved.
    """
    layout = state.layout
    if have >= _stands(layout):
        return False
    order = _order(layout, state.hashes, resident, elsewhere)
    if order == list(layout.segments):
        return False
    size = layout.block_size
    ids = request.prompt_token_ids or []
    prompt: list[int] = []
    hashes: list[bytes] = []
    head_at = 0
    for s in order:
        if s.kind == "head":
            head_at = len(prompt)
        prompt += ids[s.start : s.stop]
        hashes += state.hashes[s.start // size : s.stop // size]
    ordinal = {s.start: i for i, s in enumerate(s for s in layout.segments if s.kind == "span")}
    moved = [ordinal[s.start] for s in order if s.kind == "span"]
    public = frozenset(state.meta.public)
    meta = replace(
        state.meta,
        placements=tuple(Placement(s.logical, s.hidden) for s in order),
        public=tuple(i for i, old in enumerate(moved) if old in public),
        names=tuple(state.meta.names[old] for old in moved) if state.meta.names else (),
        head_at=head_at,
    )
    state.layout = _moved(layout, order, head_at)
    state.meta, state.hashes, state.chains = meta, hashes, [state.chains[old] for old in moved]
    _install(request, prompt, hashes, meta.to_json())
    pass_layout(request.sampling_params, state.layout)
    return True


def _moved(layout: Layout, order: list[Segment], head_at: int) -> Layout:
    """The same segments at their new physical places: what parsing the new prompt would give."""
    segments: list[Segment] = []
    at = 0
    for s in order:
        by = at - s.start
        span = s.start + by, s.stop + by, s.visible_start + by, s.visible_stop + by
        segments.append(Segment(s.kind, *span, s.logical, s.hidden))
        at += s.stop - s.start
    return Layout(tuple(segments), layout.block_size, layout.anchor, head_at, layout.num_tokens)


def _stands(layout: Layout) -> float:
    """Leading blocks that make the prompt a hit as it stands; none do if a dependent segment comes before others."""
    first = next((i for i, s in enumerate(layout.segments) if s.kind == "dependent"), len(layout.segments))
    if any(s.kind != "dependent" for s in layout.segments[first:]):
        return inf
    return (layout.segments[first].start if first < len(layout.segments) else layout.num_tokens) // layout.block_size


def _order(
    layout: Layout, hashes: list[bytes], leading: Callable[[list[bytes]], int], elsewhere: Container[bytes] | None
) -> list[Segment]:
    size, segments = layout.block_size, layout.segments
    head: list[Segment] = []
    resident: list[Segment] = []
    missing: list[tuple[bool, int, Segment]] = []
    dependent: list[Segment] = []
    for s in segments:
        if s.kind == "dependent":
            dependent.append(s)
            continue
        first, stop = s.start // size, s.stop // size
        have = leading(hashes[first:stop])
        whole = have == stop - first
        if s.kind == "head":
            head.append(s)
        elif whole:
            resident.append(s)
        else:
            missing.append((hashes[stop - 1] not in (elsewhere or ()), -have, s))
    missing.sort(key=itemgetter(0, 1))
    dependent.sort(key=attrgetter("logical"))
    behind = [s for _, _, s in missing] + dependent
    tail = segments[-1]
    order = [*resident, *head, *behind] if elsewhere is None else [*head, *resident, *behind]
    if tail.kind == "span" and (tail.stop % size or dependent or not missing):
        # It isn't block-aligned, or has what it needs before it, or the prompt would end in its padded head.
        return [*(s for s in order if s is not tail), tail]
    return order


def _install(request: "Request", prompt: list[int], hashes: list[bytes], meta: str) -> None:
    generated = request.block_hashes[len(hashes) :]
    request.prompt_token_ids = prompt
    request._all_token_ids[: len(prompt)] = prompt  # pyright: ignore[reportPrivateUsage]
    request.block_hashes = [*hashes, *generated]  # pyright: ignore[reportAttributeAccessIssue]
    # The sampling parameters may be shared with sibling requests (n > 1) of the same process.
    params = copy(request.sampling_params)
    assert params is not None
    params.extra_args = {**(params.extra_args or {}), XARGS_KEY: meta}
    request.sampling_params = params
