"""MiniPIC: position-independent KV caching for vLLM, from the client's side.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minipic_sdk._version import __version__
    from minipic_sdk.async_client import AsyncMiniPIC
    from minipic_sdk.client import MiniPIC
    from minipic_sdk.documents import Document, Tool
    from minipic_sdk.errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        ClientClosedError,
        ConflictError,
        InputError,
        InternalServerError,
        LayoutError,
        MiniPICError,
        NotFoundError,
        PermissionDeniedError,
        ProfileError,
        ProfileMismatchError,
        RateLimitError,
        SpansOffWarning,
        TemplateError,
        UnprocessableEntityError,
    )
    from minipic_sdk.layout import ControlTokens
    from minipic_sdk.options import SamplingOptions
    from minipic_sdk.profile import ModelProfile
    from minipic_sdk.prompt import Prompt, PromptSpan, PromptStats
    from minipic_sdk.results import (
        ChatResult,
        Choice,
        Chunk,
        GenerateResult,
        SpanResult,
        SpansReport,
        ToolCall,
        Usage,
    )
    from minipic_sdk.streaming import AsyncStream, Stream
    from minipic_sdk.wire import SpanStatus

_HOMES = {
    "APIConnectionError": "errors",
    "APIError": "errors",
    "APIResponseValidationError": "errors",
    "APIStatusError": "errors",
    "APITimeoutError": "errors",
    "AsyncMiniPIC": "async_client",
    "AsyncStream": "streaming",
    "AuthenticationError": "errors",
    "BadRequestError": "errors",
    "ChatResult": "results",
    "Choice": "results",
    "Chunk": "results",
    "ClientClosedError": "errors",
    "ConflictError": "errors",
    "ControlTokens": "layout",
    "Document": "documents",
    "GenerateResult": "results",
    "InputError": "errors",
    "InternalServerError": "errors",
    "LayoutError": "errors",
    "MiniPIC": "client",
    "MiniPICError": "errors",
    "ModelProfile": "profile",
    "NotFoundError": "errors",
    "PermissionDeniedError": "errors",
    "ProfileError": "errors",
    "ProfileMismatchError": "errors",
    "Prompt": "prompt",
    "PromptSpan": "prompt",
    "PromptStats": "prompt",
    "RateLimitError": "errors",
    "SamplingOptions": "options",
    "SpanResult": "results",
    "SpanStatus": "wire",
    "SpansOffWarning": "errors",
    "SpansReport": "results",
    "Stream": "streaming",
    "TemplateError": "errors",
    "Tool": "documents",
    "ToolCall": "results",
    "UnprocessableEntityError": "errors",
    "Usage": "results",
    "__version__": "_version",
}

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AsyncMiniPIC",
    "AsyncStream",
    "AuthenticationError",
    "BadRequestError",
    "ChatResult",
    "Choice",
    "Chunk",
    "ClientClosedError",
    "ConflictError",
    "ControlTokens",
    "Document",
    "GenerateResult",
    "InputError",
    "InternalServerError",
    "LayoutError",
    "MiniPIC",
    "MiniPICError",
    "ModelProfile",
    "NotFoundError",
    "PermissionDeniedError",
    "ProfileError",
    "ProfileMismatchError",
    "Prompt",
    "PromptSpan",
    "PromptStats",
    "RateLimitError",
    "SamplingOptions",
    "SpanResult",
    "SpanStatus",
    "SpansOffWarning",
    "SpansReport",
    "Stream",
    "TemplateError",
    "Tool",
    "ToolCall",
    "UnprocessableEntityError",
    "Usage",
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
