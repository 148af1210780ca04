"""The asynchronous client: as ``client.py``, driven with ``await``."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from minipic_sdk._chat_flows import Turn, finish_turn, open_turn, parsed_by_server
from minipic_sdk._flow import Flow, Send, Sleep
from minipic_sdk._flows import ended, generate, known_profile, stats
from minipic_sdk._prefetch import TaskPrefetcher
from minipic_sdk._settings import Settings
from minipic_sdk._span_flows import Spans, checked, prefetch, report
from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import MiniPICError
from minipic_sdk.options import SamplingOptions, request_params
from minipic_sdk.profile import ModelProfile
from minipic_sdk.prompt import Prompt
from minipic_sdk.results import ChatResult, GenerateResult, SpansReport
from minipic_sdk.streaming import AsyncStream
from minipic_sdk.wire import LOOKUP_PATH, SPANS_PATH, UNPIN_PATH

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Unpack

    from minipic_sdk.layouts import PromptLayout

T = TypeVar("T")


class AsyncMiniPIC:
    """As ``MiniPIC``, with coroutines. Use it in an ``async with`` block, or ``close`` it."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: "float | httpx.Timeout | None" = None,
        max_retries: int = 2,
        default_headers: Mapping[str, str] | None = None,
        http_client: "httpx.AsyncClient | None" = None,
        model: str | None = None,
        profile: ModelProfile | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Nothing is sent yet; arguments as in ``MiniPIC``."""
        import httpx

        self._settings = Settings(
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
            model=model,
            profile=profile,
            cache_salt=cache_salt,
        )
        self._session = self._settings.session
        self._owns_http = http_client is None
        self._http = http_client or httpx.AsyncClient()
        self._prefetcher = TaskPrefetcher()

    @property
    def base_url(self) -> str:
        """Where it sends, without ``/v1``."""
        return self._settings.base_url

    async def __aenter__(self) -> "AsyncMiniPIC":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop waiting prefetches and close the connections; whatever is sent later raises ``ClientClosedError``."""
        self._session.closed = True
        await self._prefetcher.close()
        if self._owns_http:
            await self._http.aclose()

    async def profile(self) -> ModelProfile:
        """The server's profile, asked once; ``NotFoundError`` from a server without the plugin."""
        return await self._run(known_profile(self._session))

    async def warm(
        self, spans: Spans, *, cache_salt: str | None = None, pin: bool = False, ttl: float | None = None
    ) -> SpansReport:
        """Prefill documents, or all spans of a prompt, and wait. Each is hit, computed, or rejected with the reason.

        Args:
            spans: documents, or a prompt.
            cache_salt: by default the client's.
            pin: keep them in the cache until ``unpin``, whatever else is used; rejected where there is no room for that.
            ttl: keep them for so many seconds; warmed again, they have the new time.
        """
        return await self._run(report(self._session, SPANS_PATH, spans, cache_salt, pin=pin, ttl=ttl))

    async def unpin(self, spans: Spans, *, cache_salt: str | None = None) -> SpansReport:
        """Let the server evict spans that were pinned; they stay cached until it does. Answers as ``lookup`` does."""
        return await self._run(report(self._session, UNPIN_PATH, spans, cache_salt))

    async def lookup(self, spans: Spans, *, cache_salt: str | None = None) -> SpansReport:
        """Ask what is cached; computes nothing. Each is resident, partial, absent, or rejected."""
        return await self._run(report(self._session, LOOKUP_PATH, spans, cache_salt))

    def prefetch(self, spans: Spans, *, cache_salt: str | None = None) -> bool:
        """Begin to prefill documents that a prompt will use soon, and return at once.

        What was sent within the last minutes is left out. Failures are dropped: the prompt will report them.

        Returns:
            Whether it was accepted; not while 64 calls wait.

        Raises:
            ClientClosedError: the client was closed.
        """
        self._session.check_open(self._http)
        flow = prefetch(self._session, checked(spans), cache_salt)
        return self._prefetcher.submit(self._run(flow))

    async def stats(self) -> dict[str, Any]:
        """The server's span counters and the state of its KV blocks."""
        return await self._run(stats(self._session))

    @overload
    async def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: "Unpack[SamplingOptions]"
    ) -> GenerateResult: ...
    @overload
    async def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: "Unpack[SamplingOptions]"
    ) -> AsyncStream[GenerateResult]: ...
    async def generate(
        self, prompt: Prompt, *, stream: bool = False, **options: "Unpack[SamplingOptions]"
    ) -> GenerateResult | AsyncStream[GenerateResult]:
        """Complete a composed prompt; arguments and errors as in ``MiniPIC.generate``."""
        params = request_params(options, cache_salt=self._session.cache_salt, stream=stream)
        got = await self._run(generate(self._session, prompt, params, options.get("timeout")))
        if isinstance(got, GenerateResult):
            return got
        return AsyncStream(got, self.base_url, lambda: self._run(ended(self._session, got)))

    @overload
    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[str | Document | Mapping[str, Any]] = (),
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        memory: Sequence[str | Document | Mapping[str, Any]] = (),
        inline: Sequence[str | Document | Mapping[str, Any]] = (),
        layout: "str | PromptLayout" = "anchored",
        tool_choice: str | Mapping[str, Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stream: Literal[False] = False,
        **options: "Unpack[SamplingOptions]",
    ) -> ChatResult: ...
    @overload
    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[str | Document | Mapping[str, Any]] = (),
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        memory: Sequence[str | Document | Mapping[str, Any]] = (),
        inline: Sequence[str | Document | Mapping[str, Any]] = (),
        layout: "str | PromptLayout" = "anchored",
        tool_choice: str | Mapping[str, Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stream: Literal[True],
        **options: "Unpack[SamplingOptions]",
    ) -> AsyncStream[ChatResult]: ...
    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[str | Document | Mapping[str, Any]] = (),
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        memory: Sequence[str | Document | Mapping[str, Any]] = (),
        inline: Sequence[str | Document | Mapping[str, Any]] = (),
        layout: "str | PromptLayout" = "anchored",
        tool_choice: str | Mapping[str, Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        stream: bool = False,
        **options: "Unpack[SamplingOptions]",
    ) -> ChatResult | AsyncStream[ChatResult]:
        """One turn of a conversation over documents; arguments and errors as in ``MiniPIC.chat``."""
        turn = Turn(messages, documents, tools, memory, layout, template_options or {}, tool_choice, inline)
        params = request_params(options, cache_salt=self._session.cache_salt, stream=stream)
        got = await self._run(open_turn(self._session, turn, params, options.get("timeout")))
        if isinstance(got, GenerateResult):
            return await self._run(finish_turn(self._session, turn, got, parsed_by_server(got)))
        return AsyncStream(got, self.base_url, lambda: self._run(finish_turn(self._session, turn, got, None)))

    async def _run(self, flow: Flow[T]) -> T:
        """Drive a flow; the sync client has the same loop without ``await``."""
        import httpx

        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    response = await self._send(step)
                except (httpx.HTTPError, MiniPICError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(response)
        except StopIteration as stop:
            return stop.value

    async def _send(self, send: Send) -> "httpx.Response":
        self._session.check_open(self._http)
        request = self._http.build_request(**self._settings.request(send))
        response = await self._http.send(request, stream=send.stream)
        if send.stream and not response.is_success:
            await response.aread()
        return response
