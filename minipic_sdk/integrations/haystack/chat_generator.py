"""The chat generator."""

import asyncio
from collections.abc import Sequence
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import (
    ChatMessage,
    ComponentInfo,
    StreamingCallbackT,
    StreamingChunk,
    select_streaming_callback,
)
from haystack.tools import (
    ToolsType,
    deserialize_tools_or_toolset_inplace,
    flatten_tools_or_toolsets,
    serialize_tools_or_toolset,
)
from haystack.utils import (
    Secret,
    deserialize_callable,  # pyright: ignore[reportUnknownVariableType]
    serialize_callable,  # pyright: ignore[reportUnknownVariableType]
)

from minipic_sdk.async_client import AsyncMiniPIC
from minipic_sdk.client import MiniPIC
from minipic_sdk.integrations._connection import Connection
from minipic_sdk.integrations._deltas import ContentDeltas
from minipic_sdk.integrations.haystack._convert import document_of, last_chunks_of, reply_of


@component
class MiniPICChatGenerator:
    """Completes chats on a MiniPIC server; on any other OpenAI-compatible server it works as usual.

    ``documents`` that the messages quote word for word, as a prompt builder writes them, become spans. What became of
    each is in ``meta["spans"]`` of the reply.
    """

    def __init__(
        self,
        *,
        api_base_url: str | None = None,
        api_key: Secret = Secret.from_env_var("MINIPIC_API_KEY", strict=False),  # noqa: B008 - immutable
        model: str | None = None,
        cache_salt: str | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        tools: ToolsType | None = None,
        client: MiniPIC | None = None,
        async_client: AsyncMiniPIC | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            api_base_url: by default ``MINIPIC_BASE_URL``.
            api_key: by default ``MINIPIC_API_KEY``, if set.
            model: to ask for; by default the one served.
            cache_salt: keeps what is cached apart from other salts'.
            streaming_callback: called with every chunk.
            generation_kwargs: arguments of the SDK's ``chat``: SamplingOptions, layout, tool_choice and so on.
            timeout: seconds for a request.
            max_retries: after errors that may pass.
            tools: the model may call these.
            client: used instead of one made from the rest; not serialised.
            async_client: the same for ``run_async``.
        """
        self.api_base_url = api_base_url
        self.api_key = api_key
        self.model = model
        self.cache_salt = cache_salt
        self.streaming_callback = streaming_callback
        self.generation_kwargs = generation_kwargs or {}
        self.timeout = timeout
        self.max_retries = max_retries
        self.tools = tools
        options = {
            "base_url": api_base_url,
            "api_key": api_key.resolve_value(),
            "model": model,
            "cache_salt": cache_salt,
            "timeout": timeout,
            "max_retries": max_retries,
        }
        self._connection = Connection(options, client, async_client)

    def to_dict(self) -> dict[str, Any]:
        """See ``component``."""
        return default_to_dict(
            self,
            api_base_url=self.api_base_url,
            api_key=self.api_key.to_dict(),
            model=self.model,
            cache_salt=self.cache_salt,
            streaming_callback=serialize_callable(self.streaming_callback) if self.streaming_callback else None,
            generation_kwargs=self.generation_kwargs,
            timeout=self.timeout,
            max_retries=self.max_retries,
            tools=serialize_tools_or_toolset(self.tools),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "MiniPICChatGenerator":
        """See ``component``."""
        given = data["init_parameters"]
        deserialize_tools_or_toolset_inplace(given, key="tools")
        if given.get("streaming_callback"):
            given["streaming_callback"] = deserialize_callable(given["streaming_callback"])
        return default_from_dict(cls, data)

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage] | str,
        documents: list[Document] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """Answer ``messages``; ``documents`` are what they quote. The rest is as in ``__init__``, for this run."""
        callback = select_streaming_callback(self.streaming_callback, streaming_callback, requires_async=False)
        request = self._request(messages, documents, generation_kwargs, tools)
        if not request["messages"]:
            return {"replies": []}
        client = self._connection.client
        if callback is None:
            return {"replies": [reply_of(client.chat(stream=False, **request))]}
        deltas, info = ContentDeltas(tools=bool(request["tools"])), ComponentInfo.from_component(self)
        start = True
        with client.chat(stream=True, **request) as stream:
            for piece in stream:
                if text := deltas.feed(piece.text):
                    callback(StreamingChunk(text, component_info=info, index=0, start=start))
                    start = False
            result = stream.result()
        for chunk in last_chunks_of(result, deltas.rest(result.content), info):
            callback(chunk)
        return {"replies": [reply_of(result)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage] | str,
        documents: list[Document] | None = None,
        streaming_callback: StreamingCallbackT | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: ToolsType | None = None,
    ) -> dict[str, list[ChatMessage]]:
        """As ``run``."""
        client = self._connection.async_client
        if client is None:
            return await asyncio.to_thread(
                self.run, messages, documents, streaming_callback, generation_kwargs, tools=tools
            )
        callback = select_streaming_callback(self.streaming_callback, streaming_callback, requires_async=True)
        request = self._request(messages, documents, generation_kwargs, tools)
        if not request["messages"]:
            return {"replies": []}
        if callback is None:
            return {"replies": [reply_of(await client.chat(stream=False, **request))]}
        deltas, info = ContentDeltas(tools=bool(request["tools"])), ComponentInfo.from_component(self)
        start = True
        async with await client.chat(stream=True, **request) as stream:
            async for piece in stream:
                if text := deltas.feed(piece.text):
                    await _call(callback, StreamingChunk(text, component_info=info, index=0, start=start))
                    start = False
            result = await stream.result()
        for chunk in last_chunks_of(result, deltas.rest(result.content), info):
            await _call(callback, chunk)
        return {"replies": [reply_of(result)]}

    def _request(
        self,
        messages: Sequence[ChatMessage] | str,
        documents: Sequence[Document] | None,
        generation_kwargs: dict[str, Any] | None,
        tools: ToolsType | None,
    ) -> dict[str, Any]:
        """Arguments of the SDK's ``chat``."""
        given = [ChatMessage.from_user(messages)] if isinstance(messages, str) else messages
        offered = flatten_tools_or_toolsets(self.tools if tools is None else tools)
        return {
            "messages": [m.to_openai_dict_format() for m in given],
            "inline": [document_of(d) for d in documents or ()],
            "tools": [{"type": "function", "function": {**t.tool_spec}} for t in offered],
            **self.generation_kwargs,
            **(generation_kwargs or {}),
        }


async def _call(callback: StreamingCallbackT, chunk: StreamingChunk) -> None:
    waiting = callback(chunk)
    if waiting is not None:
        await waiting
