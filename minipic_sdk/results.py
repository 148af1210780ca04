"""What calls return. Everything is frozen. What there is many of is a named tuple: made several times faster."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minipic_sdk.wire import SpanStatus


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int  # as the server counts: physical
    completion_tokens: int
    cached_tokens: int | None  # of the prompt, physical; None if the server doesn't tell
    visible_tokens: int  # of the prompt: without control tokens and padding
    physical_tokens: int  # of the prompt: what max_model_len bounds


class SpanResult(NamedTuple):
    """What became of one span of a prompt."""

    name: str
    key: str  # as in ``prompt.spans``
    status: str  # "hit" | "computed"
    reason: str | None  # why it was computed; None for a hit
    tokens: int  # visible


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asks for."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it

    def parsed(self) -> Any:
        """The arguments decoded; raises ``ValueError`` if the model wrote broken JSON."""
        return json.loads(self.arguments)

    def to_json(self) -> dict[str, Any]:
        """The OpenAI form, for the next turn's messages."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One completion; a request with ``n`` has several."""

    text: str
    token_ids: tuple[int, ...]  # generated; empty if the server doesn't tell
    finish_reason: str | None  # "stop", "length", ...
    stop_reason: str | int | None = None  # the stop string or token that ended it
    logprobs: Mapping[str, Any] | None = field(default=None, repr=False)  # as the server sent them


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """A completion, with what was cached for it."""

    id: str
    model: str
    choices: tuple[Choice, ...]  # not empty
    usage: Usage
    spans: tuple[SpanResult, ...]  # one per span of the prompt, in physical order
    raw: Mapping[str, Any] = field(repr=False, compare=False)  # the server's answer

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated ids of the first choice; empty if the server doesn't tell."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class ChatResult(GenerateResult):
    """A chat turn: the first choice, parsed."""

    content: str | None = None  # what is meant for the user
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, to append to ``messages`` for the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [c.to_json() for c in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream."""

    text: str
    token_ids: tuple[int, ...] = ()
    index: int = 0  # of the choice
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class SpansReport:
    """What the server did with, or knows about, the spans asked about: one status each, in the order asked."""

    spans: tuple[SpanStatus, ...]

    @property
    def tokens(self) -> int:
        """Visible tokens of all spans."""
        return sum(s.tokens for s in self.spans)

    @property
    def blocks(self) -> int:
        """KV blocks of all spans."""
        return sum(s.blocks for s in self.spans)

    def count(self, status: str) -> int:
        """Spans of this status: "hit", "computed", "rejected", "resident", "partial" or "absent"."""
        return sum(s.status == status for s in self.spans)
