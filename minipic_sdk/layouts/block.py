"""Isolated spans with an empty anchor: the paper's SSEP and Block-Attention, for models tuned to it."""

from collections.abc import Sequence

from minipic_sdk.layouts.base import Arrangement, Piece, Rules, pack


def block(pieces: Sequence[Piece], rules: Rules) -> Arrangement:
    """Pack without an anchor."""
    return pack(pieces, rules, ())
