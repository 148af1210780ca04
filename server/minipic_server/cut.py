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
    marks = ((ids == ssep) | (ids == pdep)).nonzero()[0]
    starts: list[int] = marks.tolist()
    if not starts or starts[0]:
        starts.insert(0, 0)
    stops = np.array([*starts[1:], len(ids)])
    pads = (ids == pad).nonzero()[0]
    behind = pads.searchsorted(stops)  # pads before each segment's stop
    count = behind.copy()
    count[1:] -= behind[:-1]
    visible = stops - count
    stray = pads.searchsorted(visible) != behind - count
    if (marks % block_size).any() or (count >= block_size).any() or stray.any():
        return None
    return Cut(starts, visible.tolist())
