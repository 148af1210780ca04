"""Where control tokens cut a prompt, found in packed ids: a hundred times as fast as a look at every id.

``minipic_sdk.layout`` has the rules and says what breaks one of them. This finds prompts that break none.
"""

import struct
from collections.abc import Sequence

import numpy as np

from minipic_sdk.layout import ControlTokens, Cut

ID_BYTES = 8  # of a packed id


def pack(ids: Sequence[int]) -> bytes:
    """Ids as 64-bit integers: the most expensive step of a long request, to be done once. ``ValueError`` for others."""
    try:
        return struct.pack(f"={len(ids)}q", *ids)
    except struct.error:
        raise ValueError("token ids must be 64-bit integers") from None


def find_cut(packed: bytes, control: ControlTokens, block_size: int) -> Cut | None:
    """The cut of a prompt whose head comes first; ``None`` if a rule about control tokens is broken, or may be.

    Args:
        packed: ids of the prompt.
        control: ids of SSEP, PDEP and PAD.
        block_size: tokens per KV block.
    """
    ids = np.frombuffer(packed, dtype=np.int64)
    if not len(ids) or len(set(control)) < len(control):
        return None
    ssep, pdep, pad = control
    low, high = min(control), max(control)
    if high - low < len(control):  # side by side, as in most models
        special = (ids >= low) & (ids <= high)
    else:
        special = (ids == ssep) | (ids == pdep) | (ids == pad)
    found = special.nonzero()[0]
    marks = (ids[found] != pad).nonzero()[0]
    # Where control tokens stand, between the prompt's ends; edges: which of these places begin a segment.
    places = np.concatenate(((0,), found, (len(ids),)))
    edges = np.concatenate(((0,), marks + 1, (len(found) + 1,)))
    bounds = places[edges]
    if not bounds[1]:  # no head
        edges, bounds = edges[1:], bounds[1:]
    pads = edges[1:] - edges[:-1] - 1
    starts, visible = bounds[:-1], bounds[1:] - pads
    stray = places[edges[:-1] + 1] != visible  # a segment's first pad, or the next segment
    broken = (starts % block_size > 0) | (pads >= block_size) | stray
    return None if len(broken.nonzero()[0]) else Cut(starts.tolist(), visible.tolist())
