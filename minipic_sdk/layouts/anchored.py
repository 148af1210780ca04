"""Anchored spans, the default: every span sees the prompt's first few tokens (DESIGN section 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from minipic_sdk.layouts.base import Anchor, Arrangement, Piece, Rules, choose_anchor, pack


@dataclass(frozen=True)
class Anchored:
    """Every span sees the anchor and itself."""

    name: ClassVar[str] = "anchored"
    anchor: Anchor = None  # tokens of the head, "head" for all of it, None for the profile's

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        return pack(pieces, rules, choose_anchor(pieces, rules, "anchored", self.anchor))
