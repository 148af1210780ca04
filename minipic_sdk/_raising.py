"""Making the errors of failed requests, so that ``except openai.APIError`` catches them as well.

An ``except`` clause looks at real base classes only, so an error gets openai's class of the same name as a second
base, where the application has imported openai; nothing here imports it.
"""

import json
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from minipic_sdk import errors
from minipic_sdk.errors import APIError, APIStatusError, ProfileMismatchError
from minipic_sdk.fingerprint import FINGERPRINT, explain_mismatch

if TYPE_CHECKING:
    import httpx

_E = TypeVar("_E", bound=APIError)

_BY_STATUS: Final[dict[int, type[APIStatusError]]] = {
    400: errors.BadRequestError,
    401: errors.AuthenticationError,
    403: errors.PermissionDeniedError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    422: errors.UnprocessableEntityError,
    429: errors.RateLimitError,
}


def connection_error(error: "httpx.HTTPError | httpx.StreamError", base_url: str) -> APIError:
    """The error for an exception of httpx."""
    import httpx

    request: Any = getattr(error, "_request", None)
    if isinstance(error, httpx.TimeoutException):
        return _as_openai(errors.APITimeoutError)(f"{base_url} did not answer in time", request=request)
    said = str(error) or type(error).__name__
    return _as_openai(errors.APIConnectionError)(f"{base_url}: {said}", request=request)


def broken_off(base_url: str) -> APIError:
    """The error for a stream that ended without its last event."""
    return _as_openai(errors.APIConnectionError)(f"{base_url}: the stream broke off")


def unreadable(message: str, request: "httpx.Request | None" = None) -> APIError:
    """The error for an answer that isn't what the API promises."""
    return _as_openai(errors.APIResponseValidationError)(message, request=request)


def stream_error(body: object) -> APIError:
    """The error for an error event inside a stream."""
    detail = _detail(body)
    return _as_openai(errors.APIError)(_message(detail) or "the server reported an error", body=detail)


def status_error(response: "httpx.Response") -> APIStatusError:
    """The error for an answer with an error status; its body must have been read."""
    try:
        detail = _detail(json.loads(response.content))
    except ValueError:
        detail = None
    message = _message(detail) or response.text.strip()[:500] or response.reason_phrase
    status = response.status_code
    kind = errors.InternalServerError if status >= 500 else _BY_STATUS.get(status, APIStatusError)
    if status == 409 and "profile" in message:
        stated = FINGERPRINT.findall(message)
        mismatch = _as_openai(ProfileMismatchError)(message, response=response, body=detail)
        mismatch.changed = explain_mismatch(stated[0], stated[1]) if len(stated) == 2 else ()
        return mismatch
    if status == 401:
        message += f", the API key is {'wrong' if _has_key(response) else 'missing'} (api_key= or MINIPIC_API_KEY)"
    return _as_openai(kind)(f"{status}: {message}", response=response, body=detail)


def _has_key(response: "httpx.Response") -> bool:
    return "authorization" in response.request.headers


def _detail(body: object) -> object:
    """The error object: ``{"error": {...}}`` of OpenAI and vLLM, ``{"detail": ...}`` of FastAPI."""
    if isinstance(body, dict):
        fields = cast("dict[str, object]", body)
        return fields.get("error", fields.get("detail", fields))
    return body


def _message(detail: object) -> str:
    if isinstance(detail, dict):
        fields = cast("dict[str, object]", detail)
        return str(fields.get("message", fields))
    return detail if isinstance(detail, str) else "" if detail is None else json.dumps(detail)


def _as_openai(cls: type[_E]) -> type[_E]:
    openai = sys.modules.get("openai")
    if openai is None:
        return cls
    theirs = next((b for k in cls.__mro__ if isinstance(b := getattr(openai, k.__name__, None), type)), None)
    return cls if theirs is None else cast("type[_E]", _combined(cls, theirs))


@lru_cache(maxsize=64)
def _combined(ours: type, theirs: type) -> type:
    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__, "__doc__": ours.__doc__})
