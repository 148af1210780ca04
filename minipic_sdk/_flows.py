"""What clients do, without I/O: each function is a flow that both clients drive (see _flow.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from minipic_sdk._completions import CHAT, COMPLETIONS, Asked, chat_body, completion_body, result_of
from minipic_sdk._flow import Flow, Send, exchange, json_of
from minipic_sdk._raising import unreadable
from minipic_sdk._session import Session
from minipic_sdk._stream import StreamState
from minipic_sdk.errors import (
    APIError,
    APIStatusError,
    BadRequestError,
    ClientClosedError,
    InputError,
    InternalServerError,
    NotFoundError,
    ProfileError,
    ProfileMismatchError,
)
from minipic_sdk.fingerprint import explain_mismatch
from minipic_sdk.profile import ModelProfile
from minipic_sdk.prompt import Prompt
from minipic_sdk.results import GenerateResult
from minipic_sdk.wire import PROFILE_PATH, REQUESTS_PATH, STATS_PATH, SpanStatus, parse_statuses

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_ABSENT = frozenset((404, 405, 501))  # statuses of a route that isn't there


@dataclass(frozen=True)
class Opened:
    """A stream whose answer has begun."""

    response: "httpx.Response"
    state: StreamState


def ask(session: Session, send: Send, *, max_retries: int | None = None) -> "Flow[httpx.Response]":
    """Send with the session's retries."""
    retries = session.max_retries if max_retries is None else max_retries
    return exchange(send, base_url=session.base_url, max_retries=retries)


def connect(session: Session) -> Flow[None]:
    """Find out, once, whether the server has the plugin and which model it serves."""
    if session.server is not None:
        return
    try:
        session.profile = yield from fetch_profile(session)
    except APIStatusError as error:
        if not _without_plugin(error):
            raise
        yield from _connect_plain(session)
        session.warn_off()
        return
    session.server, session.served_model = "minipic", session.profile.model


def fetch_profile(session: Session) -> Flow[ModelProfile]:
    """The server's profile, asked anew."""
    response: httpx.Response = yield from ask(session, Send("GET", PROFILE_PATH))
    try:
        return ModelProfile.from_json(json_of(response))
    except ProfileError as error:
        raise unreadable(f"{PROFILE_PATH}: {error}", response.request) from error


def known_profile(session: Session) -> Flow[ModelProfile]:
    """The server's profile, as known; ``NotFoundError`` where there is no plugin and none was given."""
    yield from connect(session)
    if session.profile is None:
        return (yield from fetch_profile(session))  # raises what the server says
    return session.profile


def stats(session: Session) -> Flow[dict[str, Any]]:
    """The server's span counters."""
    return json_of((yield from ask(session, Send("GET", STATS_PATH))))


def generate(
    session: Session, prompt: Prompt, params: Mapping[str, Any], timeout: float | None
) -> Flow[GenerateResult | Opened]:
    """Complete a prompt: with spans, as bare tokens, or as messages, whichever the server takes.

    Nothing is prefilled ahead: the server computes a prompt's missing spans in place, once, and shares them while they
    are being computed (docs/adr/0002), so a request of their own would only cost time.
    """
    if not isinstance(prompt, Prompt):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"generate takes a Prompt (see Prompt.compose), got {type(prompt).__name__}")
    yield from connect(session)
    if not session.serves(prompt.profile):
        return (yield from _as_messages(session, prompt, params, timeout))
    asked = Asked("completions", session.server == "minipic" and prompt.has_spans, prompt)
    body = completion_body(prompt, asked, model_name(session, prompt), params)
    if asked.spans:
        for number, span in enumerate(s for s in prompt.spans if s.kind == "span"):
            session.mark_sent((span.key, None if number in prompt.meta.public else params.get("cache_salt")))
    try:
        return (yield from _complete(session, COMPLETIONS, body, asked, timeout))
    except ProfileMismatchError as error:
        session.profile = yield from fetch_profile(session)
        error.changed = explain_mismatch(prompt.profile.fingerprint, session.profile.fingerprint) or error.changed
        raise


def send_messages(
    session: Session,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    params: Mapping[str, Any],
    timeout: float | None,
    prompt: Prompt | None = None,
) -> Flow[GenerateResult | Opened]:
    """Send messages for the server to render."""
    model = model_name(session, prompt)
    body = chat_body(messages, tools, options if session.server == "vllm" else {}, model, params)
    return (yield from _complete(session, CHAT, body, Asked("chat", False, prompt), timeout))


def model_name(session: Session, prompt: Prompt | None = None) -> str:
    """The model to ask for."""
    name = session.model or session.served_model
    return name or ("" if prompt is None else prompt.profile.model)


def ended(session: Session, opened: Opened) -> Flow[GenerateResult]:
    """The result of a stream that was read to its end."""
    statuses = yield from _statuses(session, opened.state)
    return opened.state.result(statuses)


def _statuses(session: Session, state: StreamState) -> Flow[tuple[SpanStatus, ...] | None]:
    """Per-span status of a stream; ``None`` if the server has forgotten it, or can't be asked any more."""
    if not state.asked.spans or not state.body.get("id"):
        return None
    try:
        response = yield from ask(session, Send("GET", f"{REQUESTS_PATH}{state.body['id']}"), max_retries=0)
        return parse_statuses(json_of(response))
    except (APIError, ClientClosedError, ValueError):
        return None


def _complete(
    session: Session, path: str, body: dict[str, Any], asked: Asked, timeout: float | None
) -> Flow[GenerateResult | Opened]:
    stream = bool(body.get("stream"))
    wants_ids = session.returns_ids and session.server != "openai" and "return_token_ids" not in body
    sent = {**body, "return_token_ids": True} if wants_ids else body
    if stream:
        sent = {"stream_options": {"include_usage": True}, **sent}
    try:
        response = yield from ask(session, Send("POST", path, sent, stream, timeout))
    except BadRequestError as error:
        if not wants_ids or "return_token_ids" not in error.message:
            raise
        session.returns_ids = False
        return (yield from _complete(session, path, body, asked, timeout))
    if stream:
        return Opened(response, StreamState(asked))
    return result_of(json_of(response), asked)


def _as_messages(
    session: Session, prompt: Prompt, params: Mapping[str, Any], timeout: float | None
) -> Flow[GenerateResult | Opened]:
    """For a server whose tokenizer and template are unknown: it must render the messages itself."""
    result = yield from send_messages(
        session, prompt.messages, prompt.tools, prompt.sources.options, params, timeout, prompt
    )
    return result


def _connect_plain(session: Session) -> Flow[None]:
    try:
        response = yield from ask(session, Send("GET", "/v1/models"))
        served: Any = json_of(response).get("data") or [{}]
    except NotFoundError:
        served = [{}]
    named = next((m for m in served if m.get("id") == session.model), served[0])
    session.served_model, session.served_root = named.get("id"), named.get("root")
    session.server = "vllm" if named.get("owned_by") == "vllm" else "openai"


def _without_plugin(error: APIStatusError) -> bool:
    if isinstance(error, InternalServerError):
        return error.status_code == 501 or "not started for spans" in error.message
    return error.status_code in _ABSENT
