"""Plain tokens: ordinary prefix caching, no spans."""

from collections.abc import Sequence

from minipic_sdk.layouts.base import Arrangement, Piece, Rules


def prefix(pieces: Sequence[Piece], rules: Rules) -> Arrangement:
    """The bare prompt."""
    del rules
    return Arrangement([token for piece in pieces for token in piece.token_ids])
