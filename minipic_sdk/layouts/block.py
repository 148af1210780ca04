"""Isolated spans with an empty anchor: the paper's SSEP and Block-Attention (2409.15355), for models tuned to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from minipic_sdk.layouts.base import Arrangement, Piece, Rules, pack


@dataclass(frozen=True)
class Block:
    """Every span sees itself alone."""

    name: ClassVar[str] = "block"

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        return pack(pieces, rules, ())
