"""Between LangChain's messages and the SDK's."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.documents import Document as LangChainDocument
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call_chunk

from minipic_sdk.documents import Document
from minipic_sdk.integrations._connection import texts_of
from minipic_sdk.results import ChatResult

DocumentLike = str | Document | LangChainDocument | Mapping[str, Any]


def document_of(value: DocumentLike) -> Document:
    """The SDK's document; named by its source, else by its id, in results."""
    if isinstance(value, LangChainDocument):
        name = cast("dict[str, Any]", value.metadata).get("source") or value.id  # pyright: ignore[reportUnknownMemberType]
        return Document(value.page_content, name=None if name is None else str(name))
    return Document.of(value)


def messages_of(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The OpenAI form; of an assistant's content blocks the text, since its tool calls have their own field."""
    plain = convert_to_openai_messages(messages)
    for message in plain:
        content: object = message["content"]
        if message["role"] == "assistant" and isinstance(content, list):
            message["content"] = "".join(texts_of(cast("list[Any]", content)))
    return plain


def message_of(result: ChatResult) -> AIMessage:
    """A whole turn."""
    calls: list[ToolCall] = []
    broken: list[Any] = []
    for call in result.tool_calls:
        try:
            calls.append(ToolCall(name=call.name, args=call.parsed(), id=call.id, type="tool_call"))
        except ValueError as error:
            broken.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error)))
    return AIMessage(content=result.content or "", tool_calls=calls, invalid_tool_calls=broken, **_common(result))


def last_chunk_of(result: ChatResult, rest: str) -> AIMessageChunk:
    """What the end of a stream adds: tool calls, usage and metadata, and text that was held back."""
    return AIMessageChunk(
        content=rest,
        tool_call_chunks=[
            tool_call_chunk(name=c.name, args=c.arguments, id=c.id, index=i) for i, c in enumerate(result.tool_calls)
        ],
        chunk_position="last",
        **_common(result),
    )


def _common(result: ChatResult) -> dict[str, Any]:
    usage = result.usage
    total = usage.prompt_tokens + usage.completion_tokens
    told: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
    if usage.cached_tokens is not None:
        told["input_token_details"] = InputTokenDetails(cache_read=usage.cached_tokens)
    metadata = {
        "id": result.id,
        "model_name": result.model,
        "model_provider": "minipic",
        "finish_reason": result.finish_reason,
        "spans": [
            {"name": s.name, "key": s.key, "status": s.status, "reason": s.reason, "tokens": s.tokens}
            for s in result.spans
        ],
    }
    thought = {} if result.reasoning is None else {"reasoning_content": result.reasoning}
    return {"usage_metadata": told, "response_metadata": metadata, "additional_kwargs": thought}
