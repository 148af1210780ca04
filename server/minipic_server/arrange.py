"""Arranging a span request: cached spans first, so that vLLM's contiguous hit covers all of them (docs/adr/0002).

Only physical places change. Every segment keeps its logical position, its bytes and its hashes; a dependent segment
folds in what it sees in logical order. The order is: resident spans, head, missing spans (the longest resident prefix
first), dependent segments in logical order.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from minipic_sdk.layout import ControlTokens, Layout, Placement, Segment
from minipic_sdk.protocol import XARGS_KEY
from minipic_server.state import SpanState, pass_layout

if TYPE_CHECKING:
    from vllm.v1.request import Request


def resident_blocks(hashes: list[bytes], is_cached: Callable[[bytes], bool]) -> int:
    """Leading blocks of a span that are in the cache."""
    return next((i for i, h in enumerate(hashes) if not is_cached(h)), len(hashes))


def arrange(request: "Request", state: SpanState, control: ControlTokens, is_cached: Callable[[bytes], bool]) -> bool:
    """Permute the request's segments in place so that a contiguous hit covers every resident span.

    Call it before anything of the request is scheduled. Returns whether anything moved.
    """
    layout = state.layout
    order = _order(layout, state.hashes, is_cached)
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
    meta = replace(
        state.meta,
        placements=tuple(Placement(s.logical, s.hidden) for s in order),
        public=tuple(i for i, old in enumerate(moved) if old in state.meta.public),
        names=tuple(state.meta.names[old] for old in moved) if state.meta.names else (),
        head_at=head_at,
    )
    state.layout = _moved(layout, order, head_at)
    state.meta, state.hashes = meta, hashes
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


def _order(layout: Layout, hashes: list[bytes], is_cached: Callable[[bytes], bool]) -> list[Segment]:
    size, segments = layout.block_size, layout.segments
    spans = [s for s in segments if s.kind == "span"]
    head = [s for s in segments if s.kind == "head"]
    dependent = sorted((s for s in segments if s.kind == "dependent"), key=lambda s: s.logical)
    have = {s: resident_blocks(hashes[s.start // size : s.stop // size], is_cached) for s in spans}
    resident = [s for s in spans if have[s] == (s.stop - s.start) // size]
    missing = sorted((s for s in spans if have[s] < (s.stop - s.start) // size), key=lambda s: -have[s])
    tail = segments[-1]
    if tail.kind != "span":
        return [*resident, *head, *missing, *dependent]
    if tail.stop % size or dependent or not missing:
        # It isn't block-aligned, or has what it needs before it, or a prompt must not end in its padded head.
        spans = [s for s in (*resident, *head, *missing, *dependent) if s is not tail]
        return [*spans, tail]
    return [*resident, *head, *missing]


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
