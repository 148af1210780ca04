"""The LLM."""
# LlamaIndex's callback decorators are not typed.
# pyright: reportUntypedFunctionDecorator=false

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.generic_utils import (
    achat_to_completion_decorator,
    astream_chat_to_completion_decorator,
    chat_to_completion_decorator,
    stream_chat_to_completion_decorator,
)
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms.callbacks import (
    llm_chat_callback,  # pyright: ignore[reportUnknownVariableType]
    llm_completion_callback,  # pyright: ignore[reportUnknownVariableType]
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import NodeWithScore

from minipic_sdk.async_client import AsyncMiniPIC
from minipic_sdk.client import MiniPIC
from minipic_sdk.errors import APIStatusError
from minipic_sdk.integrations._connection import Connection
from minipic_sdk.integrations.llama_index._convert import Growing, document_of, message_of, response_of
from minipic_sdk.options import DEFAULT_MAX_TOKENS

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool


class MiniPICLLM(FunctionCallingLLM):
    """A chat model on a MiniPIC server; on any other OpenAI-compatible server it works as usual.

    Nodes that ``MiniPICPrefetch`` (or ``prefetch``) has seen become spans where a prompt quotes them word for word, as
    response synthesizers do. What became of each span is in ``response.raw["spans"]``.
    """

    model: str | None = Field(default=None, description="Model to ask for; by default the one served.")
    base_url: str | None = Field(default=None, description="By default MINIPIC_BASE_URL.")
    api_key: str | None = Field(default=None, exclude=True, repr=False, description="By default MINIPIC_API_KEY.")
    timeout: float | None = Field(default=None, description="Seconds for a request.")
    max_retries: int = Field(default=2)
    cache_salt: str | None = Field(default=None, description="Keeps what is cached apart from other salts'.")
    temperature: float | None = Field(default=None)
    max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, description="Generated tokens, at most.")
    context_window: int | None = Field(default=None, description="By default what the server's profile says.")
    layout: str = Field(default="anchored", description="See docs/layouts.md.")
    additional_kwargs: dict[str, Any] = Field(default_factory=dict, description="Further SamplingOptions.")
    client: MiniPIC | None = Field(default=None, exclude=True, description="Instead of one made from the above.")
    async_client: AsyncMiniPIC | None = Field(default=None, exclude=True, description="The same for async calls.")

    _connection: Connection = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Makes no request yet."""
        super().model_post_init(context)
        names = ("api_key", "base_url", "timeout", "max_retries", "model", "cache_salt")
        self._connection = Connection({n: getattr(self, n) for n in names}, self.client, self.async_client)

    @classmethod
    def class_name(cls) -> str:
        """See ``BaseComponent``."""
        return "MiniPICLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """See ``BaseLLM``; the context window is asked of the server once."""
        if self.context_window is None:
            self.context_window = _context_window(self._connection.client)
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model or "minipic",
        )

    def prefetch(self, nodes: Sequence[NodeWithScore]) -> None:
        """Let the server prefill these nodes in the background, and recognise their texts from now on."""
        self._connection.prefetch(map(document_of, nodes))

    async def aprefetch(self, nodes: Sequence[NodeWithScore]) -> None:
        """As ``prefetch``; returns at once, too."""
        await self._connection.aprefetch(map(document_of, nodes))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """See ``BaseLLM``; ``documents=`` stand before the first user message."""
        return response_of(self._connection.client.chat(stream=False, **self._request(messages, kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As ``chat``."""
        if (client := self._connection.async_client) is None:
            return await asyncio.to_thread(self.chat, messages, **kwargs)
        return response_of(await client.chat(stream=False, **self._request(messages, kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Generator[ChatResponse, None, None]:
        """See ``BaseLLM``; the last response is the parsed turn."""
        request = self._request(messages, kwargs)

        def generate() -> Generator[ChatResponse, None, None]:
            growing = Growing(bool(request["tools"]))
            with self._connection.client.chat(stream=True, **request) as stream:
                for piece in stream:
                    if response := growing.feed(piece.text):
                        yield response
                yield growing.end(stream.result())

        return generate()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncGenerator[ChatResponse, None]:
        """As ``stream_chat``."""
        request = self._request(messages, kwargs)
        client = self._connection.async_client

        async def generate() -> AsyncGenerator[ChatResponse, None]:
            if client is None:
                for response in self.stream_chat(messages, **kwargs):
                    yield response
                return
            growing = Growing(bool(request["tools"]))
            async with await client.chat(stream=True, **request) as stream:
                async for piece in stream:
                    if response := growing.feed(piece.text):
                        yield response
                yield growing.end(await stream.result())

        return generate()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """See ``BaseLLM``: a chat of one user message."""
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As ``complete``."""
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Generator[CompletionResponse, None, None]:
        """As ``complete``."""
        return stream_chat_to_completion_decorator(self.stream_chat)(prompt, **kwargs)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> AsyncGenerator[CompletionResponse, None]:
        """As ``complete``."""
        return await astream_chat_to_completion_decorator(self.astream_chat)(prompt, **kwargs)

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """See ``FunctionCallingLLM``."""
        calls = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError("the model called no tool")
        return [
            ToolSelection(
                tool_id=c.tool_call_id or "",
                tool_name=c.tool_name,
                tool_kwargs=c.tool_kwargs if isinstance(c.tool_kwargs, dict) else {},
            )
            for c in calls
        ]

    def _prepare_chat_with_tools(
        self,
        tools: Sequence["BaseTool"],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        offered = [t.metadata.to_openai_tool(skip_length_check=True) for t in tools]
        choice = kwargs.pop("tool_choice", None) or ("required" if tool_required and offered else None)
        return {"messages": messages, "tools": offered, "tool_choice": choice, **kwargs}

    def _request(self, messages: Sequence[ChatMessage], given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the SDK's ``chat``."""
        plain = [message_of(m) for m in messages]
        own = {"layout": self.layout, "temperature": self.temperature, "max_tokens": self.max_tokens}
        quoted = self._connection.quoted(plain)
        return {"messages": plain, "tools": (), "inline": quoted, **own, **self.additional_kwargs, **given}


def _context_window(client: MiniPIC) -> int:
    try:
        return client.profile().max_model_len
    except APIStatusError:
        return DEFAULT_CONTEXT_WINDOW  # a server without the plugin doesn't tell
