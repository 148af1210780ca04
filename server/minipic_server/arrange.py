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
from minipic_server.state import SpanState

if TYPE_CHECKING:
    from vllm.v1.request import Request


def resident_blocks(hashes: list[bytes], is_cached: Callable[[bytes], bool]) -> int:
    """Leading blocks of a span that are in the cache."""
    return next((i for i, h in enumerate(hashes) if not is_cached(h)), len(hashes))


def arrange(
    request: "Request", state: SpanState, control: ControlTokens, is_cached: Callable[[bytes], bool]
) -> bool:
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
    spans = [s for s in layout.segments if s.kind == "span"]
    moved = [spans.index(s) for s in order if s.kind == "span"]
    meta = replace(
        state.meta,
        placements=tuple(Placement(s.logical, s.hidden) for s in order),
        public=tuple(i for i, old in enumerate(moved) if old in state.meta.public),
        names=tuple(state.meta.names[old] for old in moved) if state.meta.names else (),
        head_at=head_at,
    )
    state.layout = meta.parse(prompt, control=control, block_size=size)
    state.meta, state.hashes = meta, hashes
    _install(request, prompt, hashes, meta.to_json())
    return True


def _order(layout: Layout, hashes: list[bytes], is_cached: Callable[[bytes], bool]) -> list[Segment]:
    size, segments = layout.block_size, layout.segments
    tail = segments[-1]
    resident: list[Segment] = []
    missing: list[tuple[int, Segment]] = []
    for s in segments:
        # A last span without padding isn't block-aligned: it must stay last.
        if s.kind != "span" or (s is tail and s.stop % size):
            continue
        mine = hashes[s.start // size : s.stop // size]
        have = resident_blocks(mine, is_cached)
        if have == len(mine):
            resident.append(s)
        else:
            missing.append((have, s))
    missing.sort(key=lambda pair: -pair[0])
    head = [s for s in segments if s.kind == "head"]
    dependent = sorted((s for s in segments if s.kind == "dependent"), key=lambda s: s.logical)
    order = [*resident, *head, *(s for _, s in missing), *dependent]
    return order if len(order) == len(segments) else [*order, tail]


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
