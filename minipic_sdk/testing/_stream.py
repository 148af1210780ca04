"""Event streams of the fake server."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import httpx

from minipic_sdk.profile import ModelProfile


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces, for both kinds of client."""

    def __init__(self, events: Sequence[str]) -> None:
        self._events = events
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for event in self._events:
            yield f"data: {event}\n\n".encode()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield f"data: {event}\n\n".encode()


def completion_events(
    whole: Mapping[str, Any], profile: ModelProfile, ids: Sequence[int], reason: str, usage: Mapping[str, Any]
) -> list[str]:
    """The stream of a completion, one token an event."""
    choices: list[dict[str, Any]] = [
        {"index": 0, "text": text, "token_ids": [token]} for text, token in zip(_texts(profile, ids), ids, strict=True)
    ]
    choices.append({"index": 0, "text": "", "finish_reason": reason, "token_ids": []})
    return _events(whole, choices, usage)


def chat_events(
    whole: Mapping[str, Any], profile: ModelProfile, ids: Sequence[int], reason: str, usage: Mapping[str, Any]
) -> list[str]:
    """The stream of a chat, one token an event."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {"content": text}} for text in _texts(profile, ids)]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    return _events(whole, choices, usage)


def _texts(profile: ModelProfile, ids: Sequence[int]) -> Iterator[str]:
    """The text that each token adds; a character of several tokens comes with its last one."""
    start = 0
    for stop in range(1, len(ids) + 1):
        text = profile.tokenizer.decode(ids[start:stop])
        if text.endswith("\ufffd") and stop < len(ids):
            yield ""
        else:
            yield text
            start = stop


def _events(whole: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> list[str]:
    chunks = [{**whole, "choices": [choice]} for choice in choices]
    return [*map(json.dumps, [*chunks, {**whole, "choices": [], "usage": usage}]), "[DONE]"]
