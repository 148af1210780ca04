"""Plain tokens: ordinary prefix caching, no spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from minipic_sdk.layouts.base import Arrangement, Piece, Rules, plain


@dataclass(frozen=True)
class Prefix:
    """The bare prompt."""

    name: ClassVar[str] = "prefix"

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        del rules
        return plain(pieces)
