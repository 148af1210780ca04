"""EPIC's LegoLink (2410.15332): the first k tokens of every document are computed again, in context.

    physical   [head][A, its first k hidden][B, its first k hidden][link A][link B][question]
    logical    [head][link A][rest of A][link B][rest of B][question]

The link is a dependent segment that sees everything before the document; the document's own first k tokens, which
believed themselves at the start of a text, are hidden from everyone else. The span itself is the one that the base
layout caches, block by block, so requests of both layouts share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from minipic_sdk.errors import InputError
from minipic_sdk.layouts.base import (
    Anchor,
    Arrangement,
    Base,
    Part,
    Piece,
    Rules,
    choose_anchor,
    place,
    plain,
)

WANTED: Final = 32  # the paper's knee


def default_k(block_size: int) -> int:
    """The k nearest 32 with which PDEP and link fill whole blocks: 31 for block sizes up to 32."""
    return -(-WANTED // block_size) * block_size - 1


@dataclass(frozen=True)
class Epic:
    """Cached spans, each with a recomputed beginning.

    A document of at most k tokens is computed as a whole, and one that stands right behind its anchor, with nothing
    between, not at all: its span is already what it would be in context.
    """

    name: ClassVar[str] = "epic"
    k: int | None = None  # tokens computed again per document; by default ``default_k``
    base: Base = "anchored"
    anchor: Anchor = None  # of the anchored base

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        k = default_k(rules.block_size) if self.k is None else self.k
        if type(k) is not int or k < 1:
            raise InputError(f"k={k!r}: a positive number of tokens")
        anchor = choose_anchor(pieces, rules, self.base, self.anchor)
        parts: list[Part] = []
        at = 0
        for i, piece in enumerate(pieces):
            ids = piece.token_ids
            if piece.kind == "text" and all(p.kind == "head" for p in parts):
                head = parts.pop().token_ids if parts else []
                parts.append(Part("head", head + ids, 0))
            elif piece.kind == "text":
                parts.append(Part("dependent", ids, at))
            elif at == len(anchor):
                parts.append(Part("span", ids, at, 0, i))
            else:
                if len(ids) > k:
                    parts.append(Part("span", ids, at, k, i))
                parts.append(Part("dependent", ids[:k], at))
            at += len(ids)
        if all(p.kind != "span" for p in parts):
            return plain(pieces)
        return place(parts, rules, anchor)
