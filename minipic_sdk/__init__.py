"""MiniPIC: position-independent KV caching for vLLM, from the client's side.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipic_sdk._version import __version__
    from minipic_sdk.documents import Document, Tool
    from minipic_sdk.errors import InputError, LayoutError, MiniPICError, ProfileError, TemplateError
    from minipic_sdk.layout import ControlTokens
    from minipic_sdk.profile import ModelProfile
    from minipic_sdk.prompt import Prompt, PromptSpan, PromptStats

_HOMES = {
    "ControlTokens": "layout",
    "Document": "documents",
    "InputError": "errors",
    "LayoutError": "errors",
    "MiniPICError": "errors",
    "ModelProfile": "profile",
    "ProfileError": "errors",
    "Prompt": "prompt",
    "PromptSpan": "prompt",
    "PromptStats": "prompt",
    "TemplateError": "errors",
    "Tool": "documents",
    "__version__": "_version",
}

__all__ = [
    "ControlTokens",
    "Document",
    "InputError",
    "LayoutError",
    "MiniPICError",
    "ModelProfile",
    "ProfileError",
    "Prompt",
    "PromptSpan",
    "PromptStats",
    "TemplateError",
    "Tool",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
