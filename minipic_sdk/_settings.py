"""Arguments of the clients, with the defaults and habits of the OpenAI client."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from minipic_sdk._flow import Send
from minipic_sdk._session import Session
from minipic_sdk._version import __version__
from minipic_sdk.errors import InputError
from minipic_sdk.profile import ModelProfile

if TYPE_CHECKING:
    import httpx

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT: Final = 600.0  # seconds
CONNECT_TIMEOUT: Final = 5.0


class Settings:
    """What both clients are configured with."""

    def __init__(
        self,
        *,
        api_key: str | None,
        base_url: str | None,
        timeout: "float | httpx.Timeout | None",
        max_retries: int,
        default_headers: Mapping[str, str] | None,
        model: str | None,
        profile: ModelProfile | None,
        cache_salt: str | None,
    ) -> None:
        import httpx

        url = (base_url or os.environ.get("MINIPIC_BASE_URL") or DEFAULT_URL).rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"base_url must begin with http:// or https://, got {url!r}")
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise InputError(f"base_url {url!r} is no URL: {error}") from error
        if max_retries < 0:
            raise InputError(f"max_retries must be 0 or more, got {max_retries}")
        self.base_url = url
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        self.timeout = limit if isinstance(limit, httpx.Timeout) else httpx.Timeout(limit, connect=CONNECT_TIMEOUT)
        key = os.environ.get("MINIPIC_API_KEY") if api_key is None else api_key
        headers = {"User-Agent": f"minipic-sdk/{__version__}", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        headers.update(default_headers or {})
        self._headers = httpx.Headers(headers)
        self._json_headers = httpx.Headers({"Content-Type": "application/json"})
        self._json_headers.update(self._headers)
        self.session = Session(url, max_retries, cache_salt, model, profile)

    def request(self, send: Send) -> dict[str, Any]:
        """Arguments of httpx's ``build_request``; raises ``InputError`` for a body that is no JSON."""
        import httpx

        limit = self.timeout if send.timeout is None else httpx.Timeout(send.timeout, connect=CONNECT_TIMEOUT)
        return {
            "method": send.method,
            "url": _url(self.base_url + send.path),
            "content": None if send.body is None else _encoded(send.body),
            "headers": self._headers if send.body is None else self._json_headers,
            "timeout": limit,
        }


def _encoded(body: Mapping[str, Any]) -> bytes:
    """JSON; a prompt is thousands of token ids, for which the standard library takes 15 times as long."""
    import orjson

    with suppress(TypeError):  # of NumPy's floats or integers of more than 64 bits
        written = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        if b"null" not in written:  # which may have been NaN
            return written
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"the request can't be written as JSON: {error}") from None


@lru_cache(maxsize=64)
def _url(text: str) -> "httpx.URL":
    """Parsed once: that takes as long as ten spans' keys."""
    import httpx

    return httpx.URL(text)
