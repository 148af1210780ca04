"""Anchored spans, the default: every span sees the prompt's first few tokens (DESIGN section 6)."""

from collections.abc import Sequence
from itertools import takewhile

from minipic_sdk.layouts.base import Arrangement, Piece, Rules, pack


def anchored(pieces: Sequence[Piece], rules: Rules) -> Arrangement:
    """Pack with the profile's anchor, or with as much of it as the prompt opens with."""
    head = pieces[0].token_ids if pieces[0].kind == "text" else []
    same = takewhile(lambda pair: pair[0] == pair[1], zip(rules.anchor, head, strict=False))
    return pack(pieces, rules, [token for token, _ in same])
