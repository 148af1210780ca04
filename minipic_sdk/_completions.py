"""Bodies and answers of the OpenAI routes that prompts are sent to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from minipic_sdk._raising import unreadable
from minipic_sdk.prompt import Prompt
from minipic_sdk.results import Choice, GenerateResult, SpanResult, ToolCall, Usage
from minipic_sdk.wire import SpanStatus, parse_statuses

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"

_OFF: Final = "spans are off: the server has no MiniPIC plugin"
_UNTOLD: Final = "the server did not report it"


@dataclass(frozen=True)
class Asked:
    """What was sent, as far as reading the answer needs it."""

    route: Literal["completions", "chat"]
    spans: bool  # with span metadata
    prompt: Prompt | None  # None: messages went out as they were


@dataclass(frozen=True)
class ChatParts:
    """The message of a chat answer."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


def completion_body(prompt: Prompt, asked: Asked, model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Body for /v1/completions: token ids, and the span metadata if spans are on."""
    ids = prompt.token_ids if asked.spans else prompt.plain_token_ids
    body = {"model": model, "prompt": ids, **params}
    if asked.spans:
        body["vllm_xargs"] = {**cast("dict[str, Any]", params.get("vllm_xargs") or {}), **prompt.vllm_xargs}
    return body


def chat_body(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    model: str,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Body for /v1/chat/completions: for servers that have to render the template themselves."""
    body: dict[str, Any] = {"model": model, "messages": list(messages), **params}
    if tools:
        body["tools"] = list(tools)
    if options:
        body["chat_template_kwargs"] = dict(options)
    return body


def choice_of(entry: Mapping[str, Any], route: str) -> Choice:
    """One entry of ``choices``."""
    text = entry["text"] if route == "completions" else cast("dict[str, Any]", entry["message"]).get("content")
    return Choice(
        text=text or "",
        token_ids=tuple(entry.get("token_ids") or ()),
        finish_reason=entry.get("finish_reason"),
        stop_reason=entry.get("stop_reason"),
        logprobs=entry.get("logprobs"),
    )


def result_of(body: Mapping[str, Any], asked: Asked) -> GenerateResult:
    """The result in a whole answer; raises ``APIResponseValidationError``."""
    try:
        choices = tuple(choice_of(c, asked.route) for c in body["choices"])
        ours = cast("dict[str, Any]", body.get("kv_transfer_params") or {}).get("minipic")
        statuses = None if ours is None else parse_statuses(ours)
        if not choices:
            raise KeyError("choices")
        return assemble(body, asked, choices, statuses)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise unreadable(f"the completion can't be read: {error!r}") from error


def assemble(
    body: Mapping[str, Any], asked: Asked, choices: tuple[Choice, ...], statuses: Sequence[SpanStatus] | None
) -> GenerateResult:
    """A result from its parts; ``body`` has id, model and usage."""
    return GenerateResult(
        id=str(body.get("id", "")),
        model=str(body.get("model", "")),
        choices=choices,
        usage=_usage(body.get("usage") or {}, asked),
        spans=_span_results(asked, statuses),
        raw=body,
    )


def chat_parts(message: Mapping[str, Any]) -> ChatParts:
    """Content, reasoning and tool calls of an assistant message as vLLM and OpenAI write it."""
    calls: list[ToolCall] = []
    for call in cast("list[dict[str, Any]]", message.get("tool_calls") or []):
        function = cast("dict[str, Any]", call["function"])
        calls.append(ToolCall(call.get("id") or "", function["name"], function.get("arguments") or "{}"))
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    return ChatParts(message.get("content"), reasoning, tuple(calls))


def _usage(told: Mapping[str, Any], asked: Asked) -> Usage:
    prompt_tokens = int(told.get("prompt_tokens") or 0)
    visible = physical = prompt_tokens
    if asked.prompt is not None and asked.route == "completions":
        visible = len(asked.prompt.plain_token_ids)
        physical = len(asked.prompt.token_ids) if asked.spans else visible
    return Usage(
        prompt_tokens=prompt_tokens or physical,
        completion_tokens=int(told.get("completion_tokens") or 0),
        cached_tokens=cast("dict[str, Any]", told.get("prompt_tokens_details") or {}).get("cached_tokens"),
        visible_tokens=visible,
        physical_tokens=physical,
    )


def _span_results(asked: Asked, statuses: Sequence[SpanStatus] | None) -> tuple[SpanResult, ...]:
    if asked.prompt is None:
        return ()
    spans = [s for s in asked.prompt.spans if s.kind == "span"]
    if statuses is None or len(statuses) != len(spans):
        why = _UNTOLD if asked.spans else _OFF
        return tuple(SpanResult(s.name, s.key, "computed", why, len(s.visible)) for s in spans)
    return tuple(
        SpanResult(s.name, s.key, told.status, told.reason, len(s.visible))
        for s, told in zip(spans, statuses, strict=True)
    )
