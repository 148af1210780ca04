"""The chat model."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils import from_env, secret_from_env
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr

from minipic_sdk import AsyncMiniPIC, MiniPIC
from minipic_sdk.integrations._connection import Connection
from minipic_sdk.integrations._deltas import ContentDeltas
from minipic_sdk.integrations.langchain._convert import (
    DocumentLike,
    document_of,
    last_chunk_of,
    message_of,
    messages_of,
)
from minipic_sdk.integrations.langchain._structured import structured


class ChatMiniPIC(BaseChatModel):
    """A chat model on a MiniPIC server; on any other OpenAI-compatible server it works as usual.

    Documents become spans in either of two ways: those that a ``MiniPICRetriever`` returned (or that ``prefetch`` was
    given) are recognised where a message quotes them word for word; those in ``documents=`` of a call or of ``bind``
    are put before the first user message's text.

    Usage metadata count as the server does, padding included; ``cache_read`` is what came from the cache. What became
    of each span is in ``response_metadata["spans"]``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    model_name: str | None = Field(default=None, alias="model")  # to ask for; by default the one served
    base_url: str | None = Field(default_factory=from_env("MINIPIC_BASE_URL", default=None))
    api_key: SecretStr | None = Field(default_factory=secret_from_env("MINIPIC_API_KEY", default=None))
    timeout: float | None = None
    max_retries: int = 2
    default_headers: Mapping[str, str] | None = None
    cache_salt: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    layout: str = "anchored"  # see docs/layouts.md
    template_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    model_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])  # further SamplingOptions
    client: MiniPIC | None = Field(default=None, exclude=True)  # instead of one made from the fields above
    async_client: AsyncMiniPIC | None = Field(default=None, exclude=True)

    _connection: Connection = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Makes no request yet."""
        super().model_post_init(context)
        options = {
            "api_key": self.api_key.get_secret_value() if self.api_key else None,
            "base_url": self.base_url,
            "timeout": self.timeout,
            "max_retries": self.max_retries,
            "default_headers": self.default_headers,
            "model": self.model_name,
            "cache_salt": self.cache_salt,
        }
        self._connection = Connection(options, self.client, self.async_client)

    @property
    def _llm_type(self) -> str:
        return "minipic-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model_name, "base_url": self.base_url, "layout": self.layout, **self._sampling()}

    def prefetch(self, documents: Sequence[DocumentLike]) -> None:
        """Let the server prefill these documents in the background, and recognise their texts from now on."""
        self._connection.prefetch(map(document_of, documents))

    async def aprefetch(self, documents: Sequence[DocumentLike]) -> None:
        """As ``prefetch``; returns at once, too."""
        await self._connection.aprefetch(map(document_of, documents))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """See ``BaseChatModel``; ``tool_choice``: "auto", "none", "any", a tool's name, or as in the OpenAI API."""
        offered = [convert_to_openai_tool(t, strict=strict) for t in tools]
        if tool_choice is True or tool_choice == "any":
            tool_choice = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
            tool_choice = {"type": "function", "function": {"name": tool_choice}}
        return self.bind(tools=offered, tool_choice=tool_choice or None, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """See ``BaseChatModel``; by ``json_schema`` the server lets the model write nothing else."""
        return structured(self, schema, include_raw=include_raw, method=method, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        result = self._connection.client.chat(stream=False, **self._request(messages, stop, kwargs))
        return ChatResult(generations=[ChatGeneration(message=message_of(result))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        client = self._connection.async_client
        if client is None:
            return await super()._agenerate(messages, stop, run_manager, **kwargs)
        result = await client.chat(stream=False, **self._request(messages, stop, kwargs))
        return ChatResult(generations=[ChatGeneration(message=message_of(result))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        deltas = ContentDeltas(tools=bool(request["tools"]))
        with self._connection.client.chat(**request, stream=True) as stream:
            for piece in stream:
                if text := deltas.feed(piece.text):
                    chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
                    if run_manager:
                        run_manager.on_llm_new_token(text, chunk=chunk)
                    yield chunk
            result = stream.result()
        last = ChatGenerationChunk(message=last_chunk_of(result, deltas.rest(result.content)))
        if run_manager:
            run_manager.on_llm_new_token(last.text, chunk=last)
        yield last

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        client = self._connection.async_client
        if client is None:
            async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
                yield chunk
            return
        request = self._request(messages, stop, kwargs)
        deltas = ContentDeltas(tools=bool(request["tools"]))
        async with await client.chat(**request, stream=True) as stream:
            async for piece in stream:
                if text := deltas.feed(piece.text):
                    chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
                    if run_manager:
                        await run_manager.on_llm_new_token(text, chunk=chunk)
                    yield chunk
            result = await stream.result()
        last = ChatGenerationChunk(message=last_chunk_of(result, deltas.rest(result.content)))
        if run_manager:
            await run_manager.on_llm_new_token(last.text, chunk=last)
        yield last

    def _sampling(self) -> dict[str, Any]:
        own = {n: getattr(self, n) for n in ("temperature", "max_tokens", "top_p", "seed", "stop")}
        return {**own, **self.model_kwargs}

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Arguments of the SDK's ``chat``."""
        plain = messages_of(messages)
        request: dict[str, Any] = {"layout": self.layout, "template_options": self.template_options}
        request |= {**self._sampling(), **given}
        if "model" in request:  # as with other chat models: another model for one call
            request["extra_body"] = {**(request.get("extra_body") or {}), "model": request.pop("model")}
        if stop is not None:
            request["stop"] = stop
        request["documents"] = [document_of(d) for d in request.get("documents") or ()]
        request["tools"] = request.get("tools") or ()
        return {"messages": plain, "inline": self._connection.quoted(plain), **request}
