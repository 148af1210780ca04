"""Prompt Cache (2311.04934): modules of a schema at the positions that the schema gives them.

A module stands where it stands in the schema, however much of what comes before it was left out: positions have gaps.
Arguments, and what the schema says not to cache, are dependent segments; so are texts behind a parameter that are
shorter than a block. Where the paper encodes a whole module at once, around placeholders, here every text between two
parameters is a span of its own: it doesn't see a placeholder that the argument later replaces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from minipic_sdk.errors import InputError
from minipic_sdk.layouts.base import Anchor, Arrangement, Base, Part, Piece, Rules, choose_anchor, place

if TYPE_CHECKING:
    from minipic_sdk.schema.objects import Key, Slot


@dataclass(frozen=True)
class PromptCache:
    """Selected modules (``Schema.select``) at fixed positions; everything else behind what comes before it."""

    name: ClassVar[str] = "prompt-cache"
    base: Base = "anchored"  # the paper's: "block"
    anchor: Anchor = None  # of the anchored base

    def __call__(self, pieces: Sequence[Piece], rules: Rules) -> Arrangement:
        """See ``PromptLayout``."""
        from minipic_sdk.schema.objects import Slot

        anchor = choose_anchor(pieces, rules, self.base, self.anchor)
        begun: dict[int, _Begun] = {}  # by id of the schema
        parts: list[Part] = []
        at = 0
        for i, piece in enumerate(pieces):
            ids = piece.token_ids
            if isinstance(piece.document, Slot):
                start, length = _place(piece.document, begun, at, len(ids), rules)
                short = piece.document.behind_param and len(ids) < rules.block_size
                kind = "dependent" if piece.kind == "text" or short else "span"
                parts.append(Part(kind, ids, start, 0, i))
                at = start + length
                continue
            if piece.kind == "text" and all(p.kind == "head" for p in parts):
                head = parts.pop().token_ids if parts else []
                parts.append(Part("head", head + ids, 0))
            else:
                parts.append(Part("span" if piece.kind == "span" else "dependent", ids, at, 0, i))
            at += len(ids)
        if not begun:
            raise InputError("layout='prompt-cache' takes modules of a schema as documents: see Schema.select")
        return place(parts, rules, anchor)


class _Begun(NamedTuple):
    """A schema of which the prompt has something."""

    at: int  # position of its beginning
    places: "dict[Key, tuple[int, int]]"


def _place(slot: "Slot", begun: dict[int, _Begun], at: int, tokens: int, rules: Rules) -> tuple[int, int]:
    """Logical start of a slot and the positions that it keeps."""
    schema = slot.schema
    if id(schema) not in begun:
        assert rules.encode is not None, "compose gives layouts the tokenizer"
        begun[id(schema)] = _Begun(at, schema.places(rules.encode))
    first, places = begun[id(schema)]
    start, length = places[slot.key]
    if tokens > length:
        named = slot.param.name if slot.param else slot.name
        raise InputError(f"the value of {named!r} has {tokens} tokens, its parameter has room for {length}")
    if first + start < at:
        raise InputError(
            f"{slot.name!r} stands at position {start} of the schema, "
            f"but what comes before it ends at {at - first}: select modules once, in the schema's order"
        )
    return first + start, length
