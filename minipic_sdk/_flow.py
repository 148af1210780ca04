"""Requests without I/O: a flow yields what to send and is resumed with the answer.

The sync and the async client each drive the same generators, so no rule of the protocol is written twice.
"""

import json
import random
import time
from collections.abc import Generator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from minipic_sdk._raising import connection_error, status_error, unreadable
from minipic_sdk.errors import APIStatusError, ProfileMismatchError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

MIN_DELAY: Final = 0.5  # seconds, as in the OpenAI client
MAX_DELAY: Final = 8.0
MAX_RETRY_AFTER: Final = 60.0
_RETRIED: Final = frozenset((408, 409, 429))


class Send(NamedTuple):
    """A request to make; the answer comes back as ``httpx.Response``, exceptions of httpx are thrown in."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    stream: bool = False  # leave the body of a successful answer unread
    timeout: float | None = None  # seconds; None: the client's


class Sleep(NamedTuple):
    """A time to wait, in seconds."""

    seconds: float


Flow = Generator["Send | Sleep", Any, T]


def exchange(send: Send, *, base_url: str, max_retries: int) -> Flow["httpx.Response"]:
    """Send until it succeeds, with backoff on 408, 409 (not a stale profile), 429, 5xx and connection errors.

    Raises:
        APIError: the last failure.
    """
    import httpx

    for attempt in range(max_retries + 1):
        try:
            response: httpx.Response = yield send
        except httpx.TransportError as error:
            if attempt == max_retries:
                raise connection_error(error, base_url) from error
            yield Sleep(_delay(attempt, {}))
            continue
        if response.is_success:
            return response
        error = status_error(response)
        if attempt == max_retries or not _retried(error):
            raise error
        yield Sleep(_delay(attempt, response.headers))
    raise AssertionError("unreachable")


def _retried(error: APIStatusError) -> bool:
    told = error.response.headers.get("x-should-retry")
    if told is not None:
        return told == "true"
    mismatch = isinstance(error, ProfileMismatchError)
    return not mismatch and (error.status_code in _RETRIED or error.status_code >= 500)


def json_of(response: "httpx.Response") -> dict[str, Any]:
    """The JSON object of an answer; raises ``APIResponseValidationError``."""
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise unreadable(f"{response.request.url.path} did not answer with a JSON object", response.request)
    return body  # pyright: ignore[reportUnknownVariableType]


def _delay(attempt: int, headers: Mapping[str, str]) -> float:
    told = _retry_after(headers)
    if told is not None and 0 < told <= MAX_RETRY_AFTER:
        return told
    return min(MIN_DELAY * 2**attempt, MAX_DELAY) * (1 - 0.25 * random.random())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from ``retry-after-ms`` or ``retry-after`` (seconds or a date)."""
    try:
        if "retry-after-ms" in headers:
            return float(headers["retry-after-ms"]) / 1000
        return float(headers["retry-after"])
    except KeyError:
        return None
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
    except ValueError:
        return None
