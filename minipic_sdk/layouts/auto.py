"""The layout that `minipic doctor` found safe for the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from minipic_sdk.layouts.anchored import Anchored
from minipic_sdk.layouts.base import Arrangement, Piece, PromptLayout, Rules, head_of
from minipic_sdk.layouts.block import Block
from minipic_sdk.layouts.epic import Epic
from minipic_sdk.layouts.prefix import Prefix


@dataclass(frozen=True)
class Auto:
    """Follows the verdict in the profile; ``Prompt.layout`` and ``Prompt.layout_reason`` say what came of it."""

    name: ClassVar[str] = "auto"

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        gate = rules.gate
        chosen: PromptLayout
        if gate is None:
            chosen, reason = Anchored(), "auto: this model was not measured (run `minipic doctor`)"
        else:
            anchor = None if gate.anchor is None else min(gate.anchor, len(head_of(pieces)))
            chosen = {
                "block": Block(),
                "anchored": Anchored(anchor),
                "epic": Epic(gate.k, anchor=anchor),
                "prefix": Prefix(),
            }[gate.verdict]
            reason = f"auto: {gate.describe()}"
        return replace(chosen(pieces, rules), layout=chosen.name, reason=reason)
