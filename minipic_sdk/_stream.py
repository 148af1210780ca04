"""A streamed answer, put together without I/O."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from minipic_sdk._completions import Asked, ChatParts, assemble, chat_parts
from minipic_sdk._raising import stream_error, unreadable
from minipic_sdk._sse import EventDecoder
from minipic_sdk.results import Choice, Chunk, GenerateResult
from minipic_sdk.wire import SpanStatus


class StreamState:
    """Bytes in, chunks out; at the end the whole result."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.done = False  # the last event has come
        self.body: dict[str, Any] = {}  # id, model and usage
        self._events = EventDecoder()
        self._choices: dict[int, _Growing] = {}

    @property
    def text(self) -> str:
        """Text of the first choice so far."""
        return "".join(self._choices[0].text) if 0 in self._choices else ""

    def feed(self, data: bytes) -> list[Chunk]:
        """The chunks that ``data`` completes.

        Raises:
            APIError: the server reports an error in the stream, or sends what isn't JSON.
        """
        chunks: list[Chunk] = []
        for event in self._events.feed(data):
            if event == "[DONE]":
                self.done = True
                break
            try:
                body = cast("dict[str, Any]", json.loads(event))
                if "error" in body:
                    raise stream_error(body)
                self.body.update((k, v) for k, v in body.items() if k in ("id", "model", "usage") and v is not None)
                chunks += [self._chunk(entry) for entry in cast("list[dict[str, Any]]", body.get("choices") or [])]
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise unreadable(f"an event of the stream can't be read: {error!r}") from error
        return chunks

    def result(self, statuses: Sequence[SpanStatus] | None) -> GenerateResult:
        """What came, as one result."""
        grown = [self._choices[i].choice() for i in sorted(self._choices)] or [Choice("", (), None)]
        return assemble(self.body, self.asked, tuple(grown), statuses)

    def chat_parts(self) -> ChatParts:
        """The first choice's message, when the server parsed it."""
        return self._choices[0].chat_parts() if 0 in self._choices else ChatParts()

    def _chunk(self, entry: Mapping[str, Any]) -> Chunk:
        index = int(entry.get("index", 0))
        growing = self._choices.setdefault(index, _Growing())
        delta = cast("dict[str, Any]", entry.get("delta") or {})
        text = (entry["text"] if self.asked.route == "completions" else delta.get("content")) or ""
        ids = tuple(cast("list[int]", entry.get("token_ids") or ()))
        growing.add(text, ids, entry, delta)
        return Chunk(text, ids, index, entry.get("finish_reason"))


class _Growing:
    """One choice, growing."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._ids: list[int] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._ended: dict[str, Any] = {}
        self._logprobs: dict[str, list[Any]] = {}

    def add(self, text: str, ids: Sequence[int], entry: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        self.text.append(text)
        self._ids += ids
        self._reasoning.append(delta.get("reasoning") or delta.get("reasoning_content") or "")
        for key in ("finish_reason", "stop_reason"):
            if entry.get(key) is not None:
                self._ended[key] = entry[key]
        for key, values in cast("dict[str, list[Any]]", entry.get("logprobs") or {}).items():
            self._logprobs.setdefault(key, []).extend(values or ())
        for part in cast("list[dict[str, Any]]", delta.get("tool_calls") or []):
            call = self._calls.setdefault(part.get("index", 0), {"function": {"name": "", "arguments": ""}})
            call["id"] = part.get("id") or call.get("id")
            for key, value in cast("dict[str, str | None]", part.get("function") or {}).items():
                call["function"][key] += value or ""

    def choice(self) -> Choice:
        return Choice(
            "".join(self.text),
            tuple(self._ids),
            self._ended.get("finish_reason"),
            self._ended.get("stop_reason"),
            self._logprobs or None,
        )

    def chat_parts(self) -> ChatParts:
        return chat_parts(
            {
                "content": "".join(self.text) or None,
                "reasoning": "".join(self._reasoning) or None,
                "tool_calls": [self._calls[i] for i in sorted(self._calls)],
            }
        )
