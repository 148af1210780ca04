"""The synchronous client: the flows of ``_flows``, ``_span_flows`` and ``_chat_flows``, driven with blocking I/O."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from minipic_sdk._chat_flows import Turn, finish_turn, open_turn, parsed_by_server
from minipic_sdk._flow import Flow, Send, Sleep
from minipic_sdk._flows import ended, generate, known_profile, stats
from minipic_sdk._prefetch import ThreadPrefetcher
from minipic_sdk._settings import Settings
from minipic_sdk._span_flows import Spans, checked, prefetch, report
from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import MiniPICError
from minipic_sdk.options import SamplingOptions, request_params
from minipic_sdk.profile import ModelProfile
from minipic_sdk.prompt import Prompt
from minipic_sdk.results import ChatResult, GenerateResult, SpansReport
from minipic_sdk.streaming import Stream
from minipic_sdk.wire import LOOKUP_PATH, SPANS_PATH, UNPIN_PATH

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Unpack

    from minipic_sdk.layouts import PromptLayout

T = TypeVar("T")


class MiniPIC:
    """Talks to a MiniPIC server; with any other OpenAI-compatible server it degrades to ordinary prompts.

    Safe to share between threads. Use it in a ``with`` block, or ``close`` it.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: "float | httpx.Timeout | None" = None,
        max_retries: int = 2,
        default_headers: Mapping[str, str] | None = None,
        http_client: "httpx.Client | None" = None,
        model: str | None = None,
        profile: ModelProfile | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            api_key: by default ``MINIPIC_API_KEY``, if set.
            base_url: with or without ``/v1``; by default ``MINIPIC_BASE_URL``, else http://127.0.0.1:8000.
            timeout: seconds for a request; by default 600, 5 of them to connect.
            max_retries: after 408, 409, 429, 5xx and connection errors.
            default_headers: sent with every request.
            http_client: yours; it is not closed with the client.
            model: to ask for, such as a LoRA adapter; by default the one served.
            profile: for servers without the plugin; a server with it tells its own.
            cache_salt: keeps what this client caches apart from other salts', except documents marked public.
        """
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
        self._http = http_client or httpx.Client()
        self._prefetcher = ThreadPrefetcher()

    @property
    def base_url(self) -> str:
        """Where it sends, without ``/v1``."""
        return self._settings.base_url

    def __enter__(self) -> "MiniPIC":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop waiting prefetches and close the connections; whatever is sent later raises ``ClientClosedError``."""
        self._session.closed = True
        self._prefetcher.close()
        if self._owns_http:
            self._http.close()

    def profile(self) -> ModelProfile:
        """The server's profile, asked once; ``NotFoundError`` from a server without the plugin."""
        return self._run(known_profile(self._session))

    def warm(
        self, spans: Spans, *, cache_salt: str | None = None, pin: bool = False, ttl: float | None = None
    ) -> SpansReport:
        """Prefill documents, or all spans of a prompt, and wait. Each is hit, computed, or rejected with the reason.

        An empty document is rejected; prompts leave it out.

        Args:
            spans: documents, or a prompt.
            cache_salt: by default the client's.
            pin: keep them in the cache until ``unpin``, whatever else is used; rejected where there is no room for that.
            ttl: keep them for so many seconds; warmed again, they have the new time.
        """
        return self._run(report(self._session, SPANS_PATH, spans, cache_salt, pin=pin, ttl=ttl))

    def unpin(self, spans: Spans, *, cache_salt: str | None = None) -> SpansReport:
        """Let the server evict spans that were pinned; they stay cached until it does. Answers as ``lookup`` does."""
        return self._run(report(self._session, UNPIN_PATH, spans, cache_salt))

    def lookup(self, spans: Spans, *, cache_salt: str | None = None) -> SpansReport:
        """Ask what is cached; computes nothing. Each is resident, partial, absent, or rejected."""
        return self._run(report(self._session, LOOKUP_PATH, spans, cache_salt))

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
        return self._prefetcher.submit(lambda: self._run(flow))

    def stats(self) -> dict[str, Any]:
        """The server's span counters and the state of its KV blocks."""
        return self._run(stats(self._session))

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: "Unpack[SamplingOptions]"
    ) -> GenerateResult: ...
    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: "Unpack[SamplingOptions]"
    ) -> Stream[GenerateResult]: ...
    def generate(
        self, prompt: Prompt, *, stream: bool = False, **options: "Unpack[SamplingOptions]"
    ) -> GenerateResult | Stream[GenerateResult]:
        """Complete a composed prompt.

        Args:
            prompt: from ``Prompt.compose`` or ``Prompt.from_messages``.
            stream: return a ``Stream`` of chunks instead of the result.
            **options: max_tokens, temperature and so on: see ``SamplingOptions``.

        Raises:
            ProfileMismatchError: the prompt was composed under another profile than the server's.
            APIError: any other failure.
        """
        params = request_params(options, cache_salt=self._session.cache_salt, stream=stream)
        got = self._run(generate(self._session, prompt, params, options.get("timeout")))
        if isinstance(got, GenerateResult):
            return got
        return Stream(got, self.base_url, lambda: self._run(ended(self._session, got)))

    @overload
    def chat(
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
    def chat(
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
    ) -> Stream[ChatResult]: ...
    def chat(
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
    ) -> ChatResult | Stream[ChatResult]:
        """One turn of a conversation over documents that may come, go and change order from turn to turn.

        Args:
            messages: in the OpenAI form, the last one from the user or a tool.
            documents: each a span, if it isn't empty; they stand at the beginning of the first user message.
            tools: functions the model may call; each a span.
            memory: memory states; each a span, before the documents.
            inline: documents that the messages quote word for word, such as a filled-in prompt template; each place is
                a span, and the text stays as it is.
            layout: as in ``Prompt.compose``.
            tool_choice: ``auto``, ``none``, ``required``, or a function as in the OpenAI API.
            template_options: variables of the chat template, such as ``{"enable_thinking": False}``.
            stream: return a ``Stream``, whose result is the parsed turn.
            **options: max_tokens, temperature and so on: see ``SamplingOptions``.

        Raises:
            APIError: the request failed.
            TemplateError: the model's chat template refuses the messages.
        """
        turn = Turn(messages, documents, tools, memory, layout, template_options or {}, tool_choice, inline)
        params = request_params(options, cache_salt=self._session.cache_salt, stream=stream)
        got = self._run(open_turn(self._session, turn, params, options.get("timeout")))
        if isinstance(got, GenerateResult):
            return self._run(finish_turn(self._session, turn, got, parsed_by_server(got)))
        return Stream(got, self.base_url, lambda: self._run(finish_turn(self._session, turn, got, None)))

    def _run(self, flow: Flow[T]) -> T:
        """Drive a flow; the async client has the same loop with ``await``."""
        import httpx

        try:
            step = next(flow)
            while True:
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                    step = flow.send(None)
                    continue
                try:
                    response = self._send(step)
                except (httpx.HTTPError, MiniPICError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(response)
        except StopIteration as stop:
            return stop.value

    def _send(self, send: Send) -> "httpx.Response":
        self._session.check_open(self._http)
        request = self._http.build_request(**self._settings.request(send))
        response = self._http.send(request, stream=send.stream)
        if send.stream and not response.is_success:
            response.read()
        return response
