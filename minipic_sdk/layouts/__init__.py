"""The layouts by name. A new one is one file here and one line below."""

from collections.abc import Mapping
from typing import Final

from minipic_sdk.errors import InputError
from minipic_sdk.layouts.anchored import anchored
from minipic_sdk.layouts.base import PromptLayout
from minipic_sdk.layouts.block import block
from minipic_sdk.layouts.prefix import prefix

LAYOUTS: Final[Mapping[str, PromptLayout]] = {"anchored": anchored, "block": block, "prefix": prefix}


def layout_named(name: str) -> PromptLayout:
    """The layout called ``name``; raises ``InputError``."""
    try:
        return LAYOUTS[name]
    except KeyError:
        raise InputError(f"unknown layout {name!r}: one of {', '.join(LAYOUTS)}") from None
