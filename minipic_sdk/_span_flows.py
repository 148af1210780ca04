"""Prefilling and looking up spans, without I/O (see _flow.py)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from minipic_sdk._flow import Flow, Send, json_of
from minipic_sdk._flows import ask, connect, fetch_profile
from minipic_sdk._raising import unreadable
from minipic_sdk._session import Session
from minipic_sdk.documents import Document
from minipic_sdk.errors import InputError, MiniPICError, ProfileMismatchError
from minipic_sdk.fingerprint import explain_mismatch, short_digest
from minipic_sdk.keys import span_key
from minipic_sdk.profile import ModelProfile
from minipic_sdk.prompt import Prompt
from minipic_sdk.results import SpansReport
from minipic_sdk.wire import SPANS_PATH, SpanQuery, SpansRequest, SpanStatus, parse_statuses

BATCH_SPANS: Final = 256  # in one request, at most
BATCH_TOKENS: Final = 65536

Spans = Prompt | Sequence["str | Document | Mapping[str, Any] | SpanQuery"]


def span_queries(given: Spans, profile: ModelProfile) -> list[SpanQuery]:
    """The spans of a prompt, or those that documents would be in a prompt; queries are what they are."""
    if isinstance(given, Prompt):
        return [
            SpanQuery(
                given.token_ids[s.visible.start : s.visible.stop],
                name=s.name,
                public=number in given.meta.public,
            )
            for number, s in enumerate(s for s in given.spans if s.kind == "span")
        ]
    return [_query(item, profile) for item in given]


def _query(item: "str | Document | Mapping[str, Any] | SpanQuery", profile: ModelProfile) -> SpanQuery:
    if isinstance(item, SpanQuery):
        return item
    d = Document.of(item)
    name = d.name or f"document-{short_digest(d.content)[:8]}"
    return SpanQuery(profile.encode(d.content), name=name, public=d.public)


def checked(given: Spans) -> Spans:
    """``given`` with its documents made sure of; raises ``InputError``."""
    if isinstance(given, Prompt):
        return given
    if isinstance(given, str | Mapping | Document | SpanQuery):
        raise InputError(f"documents must be a list, got one {type(given).__name__}")
    return [d if isinstance(d, SpanQuery) else Document.of(d) for d in given]


def report(
    session: Session, path: str, given: Spans, cache_salt: str | None, *, pin: bool = False, ttl: float | None = None
) -> Flow[SpansReport]:
    """Send spans to ``path`` in batches, one status each; documents are tokenised anew if the profile has changed."""
    given = checked(given)
    if ttl is not None and not 0 < ttl < float("inf"):
        raise InputError(f"ttl must be a number of seconds above 0, got {ttl}")
    salt = session.salt(cache_salt)
    yield from connect(session)
    if session.server != "minipic" or session.profile is None:
        return _all_rejected(given)
    for again in (False, True):
        profile = given.profile if isinstance(given, Prompt) else session.profile
        anchor = given.meta.anchor if isinstance(given, Prompt) else profile.anchor_token_ids
        try:
            found: list[SpanStatus] = []
            for batch in _batches(span_queries(given, profile)):
                body = SpansRequest(batch, anchor, salt, profile.fingerprint, _adapter(session), pin, ttl)
                found += yield from _post(session, path, body)
            return SpansReport(tuple(found))
        except ProfileMismatchError as error:
            session.profile = yield from fetch_profile(session)
            error.changed = explain_mismatch(profile.fingerprint, session.profile.fingerprint) or error.changed
            if again or isinstance(given, Prompt) or any(isinstance(d, SpanQuery) for d in given):
                raise
    raise AssertionError("unreachable")


def prefetch(session: Session, given: Spans, cache_salt: str | None) -> Flow[None]:
    """Prefill what wasn't sent lately; failures are forgotten: the prompt itself will report them."""
    salt = session.salt(cache_salt)
    marks: list[tuple[str, str | None]] = []
    try:
        yield from connect(session)
        if session.server != "minipic" or session.profile is None:
            return
        profile = given.profile if isinstance(given, Prompt) else session.profile
        anchor = given.meta.anchor if isinstance(given, Prompt) else profile.anchor_token_ids
        fresh: list[SpanQuery] = []
        for query in span_queries(given, profile):
            key = span_key(profile.fingerprint, anchor, query.token_ids or ())
            mark = (key, None if query.public else salt)
            if not session.sent_lately(mark):
                session.mark_sent(mark)
                marks.append(mark)
                fresh.append(query)
        for batch in _batches(fresh):
            body = SpansRequest(batch, anchor, salt, profile.fingerprint, _adapter(session))
            yield from _post(session, SPANS_PATH, body, max_retries=0)
    except MiniPICError:
        session.forget_sent(marks)


def _post(
    session: Session, path: str, body: SpansRequest, max_retries: int | None = None
) -> Flow[tuple[SpanStatus, ...]]:
    response = yield from ask(session, Send("POST", path, body.to_json()), max_retries=max_retries)
    try:
        statuses = parse_statuses(json_of(response))
    except InputError as error:
        raise unreadable(f"{path}: {error}", response.request) from error
    if len(statuses) != len(body.spans):
        raise unreadable(f"{path} answered for {len(statuses)} of {len(body.spans)} spans", response.request)
    return statuses


def _adapter(session: Session) -> str | None:
    """The model to name: only where it isn't the base model, which is what the server assumes."""
    return None if session.model == session.served_model else session.model


def _batches(queries: Sequence[SpanQuery]) -> Iterator[list[SpanQuery]]:
    batch: list[SpanQuery] = []
    tokens = 0
    for query in queries:
        size = len(query.token_ids or ())
        if batch and (len(batch) == BATCH_SPANS or tokens + size > BATCH_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(query)
        tokens += size
    if batch:
        yield batch


def _all_rejected(given: Spans) -> SpansReport:
    why = "spans are off: the server has no MiniPIC plugin"
    names = (
        [s.name for s in given.spans if s.kind == "span"]
        if isinstance(given, Prompt)
        else [(d if isinstance(d, SpanQuery) else Document.of(d)).name or "" for d in given]
    )
    return SpansReport(tuple(SpanStatus(name, "rejected", why, tokens=0, blocks=0) for name in names))
