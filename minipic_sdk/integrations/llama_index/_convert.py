"""Between LlamaIndex's messages and the SDK's."""

import json
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.schema import MetadataMode, NodeWithScore

from minipic_sdk.documents import Document
from minipic_sdk.errors import InputError
from minipic_sdk.integrations._deltas import ContentDeltas
from minipic_sdk.results import ChatResult

_ROLES = {MessageRole.MODEL: "assistant", MessageRole.CHATBOT: "assistant", MessageRole.FUNCTION: "tool"}


class Growing:
    """A streamed turn so far."""

    def __init__(self, tools: bool) -> None:
        self._deltas = ContentDeltas(tools=tools)
        self._text = ""

    def feed(self, text: str) -> ChatResponse | None:
        """The next response, if there is something to show."""
        delta = self._deltas.feed(text)
        if not delta:
            return None
        self._text += delta
        message = ChatMessage(role=MessageRole.ASSISTANT, content=self._text)
        return ChatResponse(message=message, delta=delta)

    def end(self, result: ChatResult) -> ChatResponse:
        """The last response: the parsed turn."""
        return response_of(result, self._deltas.rest(result.content))


def response_of(result: ChatResult, delta: str | None = None) -> ChatResponse:
    """A whole turn; ``delta``: what of its text a stream hasn't shown."""
    blocks: list[ContentBlock] = []
    if result.reasoning is not None:
        blocks.append(ThinkingBlock(content=result.reasoning))
    if result.content or not result.tool_calls:
        blocks.append(TextBlock(text=result.content or ""))
    for call in result.tool_calls:
        try:
            arguments = call.parsed()
        except ValueError:
            arguments = call.arguments
        blocks.append(ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=arguments))
    usage = result.usage
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks),
        delta=delta,
        raw={"id": result.id, "model": result.model, "usage": counts, "spans": result.spans},
        additional_kwargs=counts,
    )


def message_of(message: ChatMessage) -> dict[str, Any]:
    """The OpenAI form."""
    role = _ROLES.get(message.role, message.role.value)
    calls: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            given = block.tool_kwargs
            spelled = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            function = {"name": block.tool_name, "arguments": spelled}
            calls.append({"id": block.tool_call_id or "", "type": "function", "function": function})
        elif not isinstance(block, (TextBlock, ThinkingBlock)):
            raise InputError(f"only text can be composed, got a block of type {block.block_type!r}")
    plain: dict[str, Any] = {"role": role, "content": message.content}
    if calls:
        plain["tool_calls"] = calls
    if role == "tool":
        plain["tool_call_id"] = message.additional_kwargs.get("tool_call_id", "")
    return plain


def document_of(node: NodeWithScore) -> Document:
    """What response synthesizers show the model of a node."""
    return Document(node.node.get_content(metadata_mode=MetadataMode.LLM), name=node.node.node_id)
