"""Messages to the prompt's text, with the spans' places kept.

Spans and dangerous pieces of user text go through the template as sentinels that nobody can guess, so the template
decides what stands around them and never sees, nor parses, what is in them. All other text goes through as it is:
templates trim, split and compare it.
"""

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, cast

from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import InputError, TemplateError
from minipic_sdk.inline import KnownTexts
from minipic_sdk.template import ChatTemplate
from minipic_sdk.tokenize.base import Markup
from minipic_sdk.tools import TOOLS_AFTER, TOOLS_BEFORE, ToolRef, tool_json, tool_style

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: no template touches them

SpanSource = Literal["tool", "memory", "document", "inline"]

# Whose words may be spans; never the assistant's, which were generated in context. A template may write a tool's
# answer as JSON, hence the second try without.
_INLINE_ROLES = (("system", "developer", "user", "tool"), ("system", "developer", "user"))


class Literally(NamedTuple):
    """User text that spells markup, or half of it: tokenised as ordinary text."""

    text: str


class SpanText(NamedTuple):
    """The text of one span, at its place in the prompt."""

    source: SpanSource
    number: int  # among the spans of its source, from 0
    text: str
    inline: Document | None = None  # the document that stands in a message; of source "inline" only


Part = str | Literally | SpanText  # str: template text and harmless user text


class Sources(NamedTuple):
    """What one prompt is made of."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool]
    memory: Sequence[Document]
    documents: Sequence[Document]
    options: Mapping[str, Any]  # template variables
    inline: Sequence[Document] = ()  # whose texts stand in the messages


def render_parts(template: ChatTemplate, sources: Sources, *, markup: Markup, spoken: Markup) -> list[Part]:
    """Render ``sources`` and return the prompt's text in order, in parts; no part is empty.

    Memory states, then documents, stand at the beginning of the first user message. Tools stand where the template
    puts them, or at the end of the system message if it has no place for tools. Inline documents stay where their
    texts stand, unless that would change what the template makes of the messages.

    Args:
        template: of the model.
        sources: messages and what goes into them.
        markup: what user text must not become.
        spoken: the part of it that an assistant's own words must not become either (they may hold ``<think>``).

    Raises:
        InputError: a message of the wrong shape; no user message although there are spans to place.
        TemplateError: the template refuses the messages or loses a span.
    """
    plain = _render(template, sources, markup, spoken)
    if not sources.inline:
        return plain
    known = KnownTexts(sources.inline)
    for roles in _INLINE_ROLES:
        try:
            parts = _render(template, sources, markup, spoken, known, roles)
        except TemplateError:
            continue
        if _text(parts) == _text(plain):
            return parts
    return plain


def _text(parts: Sequence[Part]) -> str:
    return "".join(p if isinstance(p, str) else p.text for p in parts)


def _render(
    template: ChatTemplate,
    sources: Sources,
    markup: Markup,
    spoken: Markup,
    known: KnownTexts | None = None,
    roles: Sequence[str] = (),
) -> list[Part]:
    sentinels = _Sentinels()
    flat = [_flat(m) for m in sources.messages]
    shielded = [
        {
            k: _hide_known(v, known, markup, sentinels)
            if known is not None and k == "content" and m["role"] in roles and isinstance(v, str)
            else _shield(v, spoken if m["role"] == "assistant" else markup, sentinels)
            for k, v in m.items()
        }
        for m in flat
    ]
    messages = cast("list[dict[str, Any]]", shielded)
    placed = [SpanText("memory", i, d.content) for i, d in enumerate(sources.memory)]
    placed += [SpanText("document", i, d.content) for i, d in enumerate(sources.documents)]
    if placed:
        _prepend(messages, "".join(map(sentinels.hide, placed)))
    style = tool_style(template) if sources.tools else None
    tools: list[ToolRef] | None = None
    if style is not None and style.mode == "system":
        hidden = "".join(sentinels.hide(SpanText("tool", i, t.json + "\n")) for i, t in enumerate(sources.tools))
        _append_system(messages, TOOLS_BEFORE + hidden + TOOLS_AFTER, refused=style.no_system)
    elif style is not None:
        definitions = [t.definition for t in sources.tools]
        tools = [
            ToolRef(cast("dict[str, Any]", _shield(d, markup, sentinels)), d, i) for i, d in enumerate(definitions)
        ]

    to_json = tool_json(
        lambda tool, options: sentinels.hide(SpanText("tool", tool.index_, json.dumps(tool.raw_, **options)))
    )
    if template.wants_parts:
        messages = [_in_parts(m) for m in messages]
    text = template.render(messages, tools=tools, options=sources.options, to_json=to_json)
    parts = sentinels.cut(text)
    shown = [p for p in parts if isinstance(p, SpanText)]
    if shown != placed:  # tools or inline documents, too, or something is wrong
        counted = Counter(shown)
        for span in placed:
            if (times := counted[span]) != 1:
                raise TemplateError(f"the chat template shows {span.source} {span.number} {times} times")
    if style is not None and style.separator:
        parts = _join_separators(parts, style.separator, before=style.mode == "before")
    return [p for p in parts if isinstance(p, SpanText) or p]


def plain_messages(sources: Sources) -> list[dict[str, Any]]:
    """The messages with memory and documents written in: what an ordinary chat server would be sent."""
    messages = [dict(m) for m in sources.messages]
    if text := "".join(d.content for d in (*sources.memory, *sources.documents)):
        messages = [_flat(m) if m.get("role") == "user" else m for m in messages]
        _prepend(messages, text)
    return messages


class _Sentinels:
    """Strings that stand for parts while the template is rendered."""

    def __init__(self) -> None:
        self._open = f"{_OPEN}{secrets.token_hex(8)}."
        self._hidden: list[Literally | SpanText] = []

    def hide(self, part: Literally | SpanText) -> str:
        self._hidden.append(part)
        return f"{self._open}{len(self._hidden) - 1}{_CLOSE}"

    def cut(self, text: str) -> list[Part]:
        first, *rest = text.split(self._open)
        parts: list[Part] = [first]
        for piece in rest:
            number, _, behind = piece.partition(_CLOSE)
            parts += [self._hidden[int(number)], behind]
        return parts


def _shield(value: object, markup: Markup, sentinels: _Sentinels) -> object:
    if isinstance(value, str):
        pieces: list[str] = []
        at = 0
        for start, stop in markup.unsafe(value):
            pieces += [value[at:start], sentinels.hide(Literally(value[start:stop]))]
            at = stop
        return "".join([*pieces, value[at:]]) if pieces else value
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value).items()
        return {cast("str", _shield(k, markup, sentinels)): _shield(v, markup, sentinels) for k, v in entries}
    if isinstance(value, list | tuple):
        return [_shield(v, markup, sentinels) for v in cast("list[object]", value)]
    return value


def _hide_known(text: str, known: KnownTexts, markup: Markup, sentinels: _Sentinels) -> str:
    """``text`` with sentinels for the documents in it, and its dangerous pieces shielded."""
    pieces: list[str] = []
    at = 0
    for start, stop, document in known.find(text):
        pieces.append(cast("str", _shield(text[at:start], markup, sentinels)))
        pieces.append(sentinels.hide(SpanText("inline", 0, text[start:stop], document)))
        at = stop
    return "".join([*pieces, cast("str", _shield(text[at:], markup, sentinels))])


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: one text, tool arguments as objects (vLLM, entrypoints/chat_utils.py)."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"a message is a mapping with a role and a content, got {message!r:.80}")
    flat = dict(message)
    content = flat.get("content")
    if isinstance(content, list | tuple):
        flat["content"] = "\n".join(map(_text_of, cast("list[object]", content)))
    elif content is not None and not isinstance(content, str):
        raise InputError(f"a message's content is text or a list of text parts, got {type(content).__name__}")
    if flat.get("tool_calls"):
        flat["tool_calls"] = [_call(c) for c in cast("list[Mapping[str, Any]]", flat["tool_calls"])]
    return flat


def _text_of(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        fields = cast("Mapping[str, Any]", part)
        if fields.get("type") in ("text", "input_text", "output_text") and isinstance(fields.get("text"), str):
            return fields["text"]
        raise InputError(f"only text can be composed, got a content part of type {fields.get('type')!r}")
    raise InputError(f"a content part is a mapping, got {type(part).__name__}")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(cast("Mapping[str, Any]", call.get("function", {})))
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError):  # a model's broken JSON goes to the template as text
            function["arguments"] = json.loads(function["arguments"] or "{}")
    return {**call, "function": function}


def _prepend(messages: list[dict[str, Any]], text: str) -> None:
    for message in messages:
        if message.get("role") == "user":
            message["content"] = text + (message.get("content") or "")
            return
    raise InputError("documents and memory need a user message to stand in")


def _append_system(messages: list[dict[str, Any]], text: str, *, refused: bool) -> None:
    if refused:
        _prepend(messages, text + "\n\n")
    elif messages and messages[0]["role"] == "system":
        given = messages[0].get("content") or ""
        messages[0]["content"] = f"{given}\n\n{text}" if given else text
    else:
        messages.insert(0, {"role": "system", "content": text})


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message.get("content"), str):
        return {**message, "content": [{"type": "text", "text": message["content"]}]}
    return message


def _join_separators(parts: list[Part], separator: str, *, before: bool) -> list[Part]:
    """Move the template's constant text between tools into the tools' spans, so they can stand in any order."""
    joined = list(parts)
    for i, part in enumerate(joined):
        if not isinstance(part, SpanText) or part.source != "tool":
            continue
        at = i - 1 if before else i + 1
        beside = joined[at] if 0 <= at < len(joined) else ""
        if not isinstance(beside, str):
            continue
        if before and beside.endswith(separator):
            joined[at] = beside[: len(beside) - len(separator)]
            joined[i] = part._replace(text=separator + part.text)
        elif not before and beside.startswith(separator):
            joined[at] = beside[len(separator) :]
            joined[i] = part._replace(text=part.text + separator)
    return joined
