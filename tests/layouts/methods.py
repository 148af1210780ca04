"""Each method as its paper describes it, written out for the reference: none of the product's layouts is used.

A prompt is given as texts (``T``) and documents (``D``) in the order in which the model reads them.
"""

from typing import Any, NamedTuple

from reference.prompts import Control, Piece, PromptSpec, dep, head, span


class T(NamedTuple):
    """Text that belongs to this prompt alone."""

    ids: tuple[int, ...]


class D(NamedTuple):
    """A document."""

    ids: tuple[int, ...]
    place: int | None = None  # its position, where a schema says so


Given = list[T | D]


def spans(given: Given, anchor: int, **more: Any) -> PromptSpec:
    """Block-Attention (no anchor) and anchored spans: documents alone, everything else sees all."""
    return PromptSpec((*_opening(given), *(_alone(g) for g in given[_has_head(given) :])), anchor=anchor, **more)


def epic(given: Given, anchor: int, k: int, **more: Any) -> PromptSpec:
    """LegoLink: the first k tokens of every document seen by others are those computed in context."""
    first, late = list(_opening(given)), []
    at = sum(len(p.tokens) for p in first)
    for piece in given[_has_head(given) :]:
        if isinstance(piece, D) and len(piece.ids) > k:
            first.append(span(*piece.ids, logical=at, hidden=k))
            late.append(dep(*piece.ids[:k], logical=at))
        elif piece.ids:
            late.append(dep(*piece.ids, logical=at))
        at += len(piece.ids)
    return PromptSpec((*first, *late), anchor=anchor, **more)


def placed(given: Given, anchor: int, **more: Any) -> PromptSpec:
    """Prompt Cache: documents where the schema puts them, texts behind what comes before them."""
    first, late = list(_opening(given)), []
    at = sum(len(p.tokens) for p in first)
    for piece in given[_has_head(given) :]:
        if isinstance(piece, D):
            at = at if piece.place is None else piece.place
            first.append(span(*piece.ids, logical=at))
        else:
            late.append(dep(*piece.ids, logical=at))
        at += len(piece.ids)
    return PromptSpec((*first, *late), anchor=anchor, **more)


def full(given: Given) -> PromptSpec:
    """Everything sees everything before it."""
    return PromptSpec((head(*(t for g in given for t in g.ids)),))


def parts(spec: PromptSpec) -> list[PromptSpec]:
    """Each span of a prompt alone behind its anchor, as warming sends it."""
    opening = (head(*spec.pieces[0].tokens[: spec.anchor]),) if spec.anchor else ()
    alone = [span(*p.tokens) for p in spec.pieces if p.kind == "span"]
    return [PromptSpec((*opening, p), anchor=spec.anchor, block=spec.block, control=spec.control) for p in alone]


def control(ids: tuple[int, int, int]) -> Control:
    """The reference's own type for control ids."""
    return Control(*ids)


def _has_head(given: Given) -> int:
    return int(isinstance(given[0], T))


def _opening(given: Given) -> tuple[Piece, ...]:
    return (head(*given[0].ids),) if _has_head(given) else ()


def _alone(piece: T | D) -> Piece:
    return span(*piece.ids) if isinstance(piece, D) else dep(*piece.ids)
