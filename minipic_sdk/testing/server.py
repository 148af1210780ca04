"""A server inside the process."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import httpx

from minipic_sdk.errors import MiniPICError
from minipic_sdk.keys import span_key
from minipic_sdk.layout import Segment
from minipic_sdk.profile import ModelProfile
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_sdk.testing._stream import Pieces, chat_events, completion_events
from minipic_sdk.testing.profile import fake_profile
from minipic_sdk.wire import (
    FIRST_SEEN,
    LOOKUP_PATH,
    PROFILE_PATH,
    REQUESTS_PATH,
    SPANS_PATH,
    STATS_PATH,
    UNPIN_PATH,
    SpansRequest,
    SpanStatus,
)

Kind = Literal["minipic", "vllm", "openai"]
_Cached = tuple[str, str | None]  # key and cache salt


class Recorded(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    body: Any  # decoded JSON; None without a body


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeServer:
    """Answers the routes that the clients use; ``http_client`` plugs it into one.

    Attributes:
        profile: what it serves; set another one to make older prompts stale.
        requests: what arrived, in order.
    """

    def __init__(
        self,
        *,
        reply: str | Callable[[str], str] = "ok",
        profile: ModelProfile | None = None,
        kind: Kind = "minipic",
        api_key: str | None = None,
        blocks: int = 1 << 20,
    ) -> None:
        """Make one.

        Args:
            reply: what it generates: a text, or a function of the prompt's text.
            profile: by default ``fake_profile()``.
            kind: with the plugin, vLLM without it, or another server with a chat route only.
            api_key: what it asks for.
            blocks: KV blocks that it says it has; it never evicts, but lets no more than half of them be pinned.
        """
        self.profile = profile or fake_profile()
        self.requests: list[Recorded] = []
        self._reply = reply
        self._kind = kind
        self._api_key = api_key
        self._blocks = blocks
        self._seen: set[_Cached] = set()
        self._pins: dict[_Cached, tuple[int, float | None]] = {}  # blocks, seconds
        self._statuses: dict[str, list[SpanStatus]] = {}
        self._failures: list[httpx.Response | Exception] = []
        self._cut_after: int | None = None

    def http_client(self) -> httpx.Client:
        """For ``MiniPIC(http_client=...)``."""
        return httpx.Client(transport=httpx.MockTransport(self._handle))

    def async_http_client(self) -> httpx.AsyncClient:
        """For ``AsyncMiniPIC(http_client=...)``."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._handle))

    def fail_next(self, *failures: int | Exception, headers: Mapping[str, str] | None = None) -> None:
        """Answer the next requests with these statuses, or let these exceptions happen instead of an answer."""
        for failure in failures:
            if isinstance(failure, int):
                error = {"error": {"message": f"failure {failure} on demand", "type": "fake", "code": failure}}
                self._failures.append(httpx.Response(failure, json=error, headers=headers))
            else:
                self._failures.append(failure)

    def cut_streams(self, after: int) -> None:
        """Let streams break off after so many events."""
        self._cut_after = after

    def evict(self) -> None:
        """Forget every span, pinned ones too, as a restart does."""
        self._seen.clear()
        self._pins.clear()

    def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        path = request.url.path
        self.requests.append(Recorded(request.method, path, body))
        if self._failures:
            failure = self._failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        try:
            if self._api_key and request.headers.get("authorization") != f"Bearer {self._api_key}":
                raise _RefusedError(401, "Unauthorized")
            return self._answer(path, body)
        except _RefusedError as refused:
            error = {"message": str(refused), "type": "fake", "param": None, "code": refused.status}
            return httpx.Response(refused.status, json={"error": error})

    def _answer(self, path: str, body: Any) -> httpx.Response:
        if path == "/v1/models":
            owner = "someone" if self._kind == "openai" else "vllm"
            model = {
                "id": self.profile.model,
                "object": "model",
                "owned_by": owner,
                "root": self.profile.model,
            }
            return httpx.Response(200, json={"object": "list", "data": [model]})
        if path == "/v1/chat/completions":
            return self._chat(body)
        if path == "/v1/completions" and self._kind != "openai":
            return self._completion(body)
        if self._kind == "minipic":
            if path == PROFILE_PATH:
                return httpx.Response(200, json=self.profile.to_json())
            if path in (SPANS_PATH, LOOKUP_PATH, UNPIN_PATH):
                return _spans(self._look_at(body, path))
            if path == STATS_PATH:
                pinned = sum(blocks for blocks, _ in self._pins.values())
                held = {"resident": len(self._seen), "blocks": self._blocks, "block_bytes": 1 << 14}
                held |= {"pinned_spans": len(self._pins), "pinned_blocks": pinned, "pin_limit": self._blocks // 2}
                return httpx.Response(200, json=held)
            if path.startswith(REQUESTS_PATH) and (found := self._statuses.get(path.removeprefix(REQUESTS_PATH))):
                return _spans(found)
        raise _RefusedError(404, "Not Found")

    def _completion(self, body: Mapping[str, Any]) -> httpx.Response:
        ids = cast("list[int]", body["prompt"])
        text = (cast("dict[str, Any]", body.get("vllm_xargs") or {})).get(XARGS_KEY)
        number = f"cmpl-fake-{len(self.requests)}"
        statuses: list[SpanStatus] | None = None
        if text is not None and self._kind == "minipic":
            statuses = self._statuses[number] = self._check(ids, text, body.get("cache_salt"))
        visible = [t for t in ids if statuses is None or t not in self.profile.control_tokens]
        out, generated, reason = self._generate(self.profile.tokenizer.decode(visible), body.get("max_tokens"))
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(generated),
            "total_tokens": len(ids) + len(generated),
        }
        cached = sum(s.blocks for s in statuses or () if s.status == "hit") * self.profile.block_size
        usage["prompt_tokens_details"] = {"cached_tokens": cached}  # pyright: ignore[reportArgumentType]
        whole = {"id": number, "object": "text_completion", "model": self.profile.model}
        if body.get("stream"):
            return self._stream(completion_events(whole, self.profile, generated, reason, usage))
        choice: dict[str, Any] = {"index": 0, "text": out, "finish_reason": reason, "token_ids": generated}
        answer: dict[str, Any] = {**whole, "choices": [choice], "usage": usage}
        if statuses is not None:
            answer["kv_transfer_params"] = {"minipic": {"spans": [s.to_json() for s in statuses]}}
        return httpx.Response(200, json=answer)

    def _chat(self, body: Mapping[str, Any]) -> httpx.Response:
        shown = "\n".join(str(m.get("content") or "") for m in cast("list[dict[str, Any]]", body["messages"]))
        out, generated, reason = self._generate(shown, body.get("max_tokens"))
        usage = {"prompt_tokens": len(shown), "completion_tokens": len(generated), "total_tokens": 0}
        whole = {"id": f"chatcmpl-fake-{len(self.requests)}", "model": self.profile.model}
        if body.get("stream"):
            return self._stream(chat_events(whole, self.profile, generated, reason, usage))
        message = {"role": "assistant", "content": out}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return httpx.Response(200, json={**whole, "choices": [choice], "usage": usage})

    def _generate(self, prompt: str, max_tokens: int | None) -> tuple[str, list[int], str]:
        text = self._reply if isinstance(self._reply, str) else self._reply(prompt)
        ids = self.profile.encode(text)
        if max_tokens is None or len(ids) <= max_tokens:
            return text, ids, "stop"
        return self.profile.tokenizer.decode(ids[:max_tokens]), ids[:max_tokens], "length"

    def _stream(self, events: Sequence[str]) -> httpx.Response:
        shown = events if self._cut_after is None else events[: self._cut_after]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(shown))

    def _check(self, ids: list[int], text: str, salt: str | None) -> list[SpanStatus]:
        try:
            meta = RequestMeta.from_json(text)
            self._check_fingerprint(meta.fingerprint)
            layout = meta.parse(ids, control=self.profile.control_tokens, block_size=self.profile.block_size)
        except MiniPICError as error:
            raise _RefusedError(400, str(error)) from None
        spans = [s for s in layout.segments if s.kind == "span"]
        return [
            self._status(self._visible(ids, s), meta.anchor, name, None if i in meta.public else salt, computes=True)
            for i, (s, name) in enumerate(zip(spans, meta.names, strict=True))
        ]

    def _check_fingerprint(self, fingerprint: str | None) -> None:
        if fingerprint is not None and fingerprint != self.profile.fingerprint:
            raise _RefusedError(
                409,
                f"stale profile {fingerprint}: this server has {self.profile.fingerprint}; fetch it again",
            )

    def _look_at(self, body: object, path: str) -> list[SpanStatus]:
        try:
            asked = SpansRequest.from_json(body)
        except MiniPICError as error:
            raise _RefusedError(400, str(error)) from None
        self._check_fingerprint(asked.fingerprint)
        anchor = self.profile.anchor_token_ids if asked.anchor_token_ids is None else asked.anchor_token_ids
        found: list[SpanStatus] = []
        for i, span in enumerate(asked.spans):
            name = span.name or f"span {i}"
            ids = list(span.token_ids) if span.token_ids is not None else self.profile.encode(span.text or "")
            wrong = "it holds a control token" if any(t in self.profile.control_tokens for t in ids) else None
            if not ids or wrong:
                found.append(SpanStatus(name, "rejected", wrong or "it has no tokens", tokens=0, blocks=0))
                continue
            salt = None if span.public else asked.cache_salt
            cached = span_key(self.profile.fingerprint, anchor, ids), salt
            blocks = -(-(len(ids) + 1) // self.profile.block_size)
            if path == UNPIN_PATH:
                self._pins.pop(cached, None)
            elif path == SPANS_PATH and (asked.pin or asked.ttl is not None):
                taken = sum(n for key, (n, _) in self._pins.items() if key != cached)
                if taken + blocks > self._blocks // 2:
                    why = f"pinned spans may take {self._blocks // 2} KV blocks, {taken} are taken"
                    found.append(SpanStatus(name, "rejected", why, len(ids), blocks, pinned=False))
                    continue
                self._pins[cached] = blocks, asked.ttl
            status = self._status(ids, anchor, name, salt, computes=path == SPANS_PATH)
            left = self._pins.get(cached, (0, None))[1]
            found.append(status._replace(pinned=cached in self._pins, expires_in=left))
        return found

    def _status(
        self, ids: Sequence[int], anchor: Sequence[int], name: str, salt: str | None, *, computes: bool
    ) -> SpanStatus:
        key = span_key(self.profile.fingerprint, anchor, ids)
        held = (key, salt) in self._seen
        blocks = -(-(len(ids) + 1) // self.profile.block_size)
        if not computes:
            return SpanStatus(
                name, "resident" if held else "absent", None, len(ids), blocks, key, blocks if held else 0
            )
        self._seen.add((key, salt))
        return SpanStatus(name, "hit" if held else "computed", None if held else FIRST_SEEN, len(ids), blocks, key)

    @staticmethod
    def _visible(ids: list[int], segment: Segment) -> list[int]:
        return ids[segment.visible_start : segment.visible_stop]


def _spans(statuses: Sequence[SpanStatus]) -> httpx.Response:
    return httpx.Response(200, json={"spans": [s.to_json() for s in statuses]})
