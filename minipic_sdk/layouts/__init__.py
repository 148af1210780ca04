"""The layouts by name. A new one is one file here and one line below; an object of yours works as well."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypedDict, cast

from minipic_sdk.errors import InputError
from minipic_sdk.layouts.anchored import Anchored
from minipic_sdk.layouts.auto import Auto
from minipic_sdk.layouts.base import Anchor, Base, PromptLayout
from minipic_sdk.layouts.block import Block
from minipic_sdk.layouts.epic import Epic
from minipic_sdk.layouts.prefix import Prefix
from minipic_sdk.layouts.prompt_cache import PromptCache

__all__ = [
    "LAYOUTS",
    "Anchored",
    "Auto",
    "Block",
    "Epic",
    "LayoutOptions",
    "Prefix",
    "PromptCache",
    "PromptLayout",
    "layout_named",
]

LAYOUTS: Final[Mapping[str, Callable[..., PromptLayout]]] = {
    kind.name: kind for kind in (Anchored, Auto, Block, Epic, Prefix, PromptCache)
}


class LayoutOptions(TypedDict, total=False):
    """Keywords of ``Prompt.compose`` that belong to a layout; each layout takes those that are its fields."""

    anchor: Anchor  # anchored, epic, prompt-cache: tokens of the head that spans see, or "head"
    base: Base  # epic, prompt-cache: spans with an anchor, or bare ones
    k: int | None  # epic: tokens of every document that are computed again


def layout_named(layout: str | PromptLayout, options: LayoutOptions | None = None) -> PromptLayout:
    """The layout called ``layout`` with its options, or the given one.

    Raises:
        InputError: there is no such layout, or it has no such option.
    """
    given = cast("dict[str, Any]", options or {})
    if not isinstance(layout, str):
        if given or not callable(layout):
            what = f"the option {min(given)!r} beside a layout object" if given else f"{layout!r} is no layout"
            raise InputError(f"layout: {what}")
        return layout
    if layout not in LAYOUTS:
        raise InputError(f"unknown layout {layout!r}: one of {', '.join(LAYOUTS)}")
    kind = LAYOUTS[layout]
    if not given:
        return kind()
    known = [f.name for f in fields(cast("Any", kind))]
    if unknown := given.keys() - known:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise InputError(f"the layout {layout!r} has no option {min(unknown)!r}: {takes}")
    return kind(**given)
