"""Between Haystack's data classes and the SDK's."""

from typing import Any, cast

from haystack import Document as HaystackDocument
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    FinishReason,
    ReasoningContent,
    StreamingChunk,
    ToolCall,
    ToolCallDelta,
)

from minipic_sdk.documents import Document
from minipic_sdk.results import ChatResult

_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


def document_of(document: HaystackDocument) -> Document:
    """The SDK's document, named by its id in results; empty where there is no text."""
    return Document(document.content or "", name=document.id)


def reply_of(result: ChatResult) -> ChatMessage:
    """A whole turn."""
    calls, _ = _calls_of(result)
    return ChatMessage.from_assistant(
        text=result.content,
        tool_calls=calls,
        reasoning=None if result.reasoning is None else ReasoningContent(result.reasoning),
        meta=_meta(result),
    )


def last_chunks_of(result: ChatResult, rest: str, info: ComponentInfo) -> list[StreamingChunk]:
    """What the end of a stream adds: text that was held back, tool calls, usage and metadata."""
    chunks = [StreamingChunk(rest, component_info=info, index=0)] if rest else []
    if result.tool_calls:
        deltas = [
            ToolCallDelta(index=i, tool_name=c.name, arguments=c.arguments, id=c.id)
            for i, c in enumerate(result.tool_calls)
        ]
        chunks.append(StreamingChunk("", component_info=info, index=1, tool_calls=deltas, start=True))
    reason = cast("FinishReason | None", _REASONS.get(_finish_reason(result)))
    return [*chunks, StreamingChunk("", meta=_meta(result), component_info=info, finish_reason=reason)]


def _finish_reason(result: ChatResult) -> str:
    return "tool_calls" if result.tool_calls else result.finish_reason or ""


def _meta(result: ChatResult) -> dict[str, Any]:
    usage = result.usage
    meta: dict[str, Any] = {
        "model": result.model,
        "index": 0,
        "finish_reason": _finish_reason(result),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        "spans": [
            {"name": s.name, "key": s.key, "status": s.status, "reason": s.reason, "tokens": s.tokens}
            for s in result.spans
        ],
    }
    if broken := _calls_of(result)[1]:
        meta["unreadable_tool_calls"] = broken
    return meta


def _calls_of(result: ChatResult) -> tuple[list[ToolCall], list[dict[str, Any]]]:
    """Tool calls, and those whose arguments are not JSON, as the model wrote them."""
    calls: list[ToolCall] = []
    broken: list[dict[str, Any]] = []
    for call in result.tool_calls:
        try:
            calls.append(ToolCall(tool_name=call.name, arguments=call.parsed(), id=call.id))
        except ValueError:
            broken.append(call.to_json())
    return calls, broken
