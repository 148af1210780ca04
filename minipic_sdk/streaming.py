"""Streams of generated text: thin shells around one state without I/O (see _stream.py)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, Generic, TypeVar

from minipic_sdk._flows import Opened
from minipic_sdk._raising import broken_off, connection_error
from minipic_sdk.errors import InputError
from minipic_sdk.results import Chunk, GenerateResult

R = TypeVar("R", bound=GenerateResult)
_LEFT: Final = "the stream was closed before its end, so there is no whole result"


class Stream(Generic[R]):
    """Chunks as they are generated. Closing it, also by leaving its ``with`` block, aborts the request.

    For a chat the chunks are the assistant's unparsed text; ``result`` has content, reasoning and tool calls.
    """

    def __init__(self, opened: Opened, base_url: str, finish: Callable[[], R]) -> None:
        self._opened = opened
        self._base_url = base_url
        self._finish = finish
        self._result: R | None = None
        self._left = False  # closed before its end
        self._chunks = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> "Stream[R]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def text(self) -> str:
        """Text of the first choice so far."""
        return self._opened.state.text

    def close(self) -> None:
        """Stop: the server aborts the request when the connection closes."""
        self._left = not self._opened.state.done
        self._opened.response.close()

    def result(self) -> R:
        """Read to the end and return the whole result; per-span status costs one more request.

        Raises:
            InputError: the stream was closed before its end.
        """
        if self._result is None:
            if self._left:
                raise InputError(_LEFT)
            for _ in self._chunks:
                pass
            self._result = self._finish()
        return self._result

    def _read(self) -> Iterator[Chunk]:
        import httpx

        state, response = self._opened.state, self._opened.response
        try:
            for data in response.iter_bytes():
                yield from state.feed(data)
                if state.done:
                    return
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise connection_error(error, self._base_url) from error
        finally:
            response.close()
        raise broken_off(self._base_url)


class AsyncStream(Generic[R]):
    """As ``Stream``, for ``async for`` and ``async with``."""

    def __init__(self, opened: Opened, base_url: str, finish: Callable[[], Awaitable[R]]) -> None:
        self._opened = opened
        self._base_url = base_url
        self._finish = finish
        self._result: R | None = None
        self._left = False  # closed before its end
        self._chunks = self._read()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks

    async def __anext__(self) -> Chunk:
        return await self._chunks.__anext__()

    async def __aenter__(self) -> "AsyncStream[R]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def text(self) -> str:
        """Text of the first choice so far."""
        return self._opened.state.text

    async def close(self) -> None:
        """Stop: the server aborts the request when the connection closes."""
        self._left = not self._opened.state.done
        await self._opened.response.aclose()

    async def result(self) -> R:
        """Read to the end and return the whole result; per-span status costs one more request.

        Raises:
            InputError: the stream was closed before its end.
        """
        if self._result is None:
            if self._left:
                raise InputError(_LEFT)
            async for _ in self._chunks:
                pass
            self._result = await self._finish()
        return self._result

    async def _read(self) -> AsyncIterator[Chunk]:
        import httpx

        state, response = self._opened.state, self._opened.response
        try:
            async for data in response.aiter_bytes():
                for chunk in state.feed(data):
                    yield chunk
                if state.done:
                    return
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise connection_error(error, self._base_url) from error
        finally:
            await response.aclose()
        raise broken_off(self._base_url)
