"""How a chat template writes tools, found by trying it once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, cast

from minipic_sdk.errors import TemplateError
from minipic_sdk.template import ChatTemplate, ToJSON

# For templates without tools: what vLLM's ``hermes`` tool parser reads.
TOOLS_BEFORE: Final = (
    "# Tools\n\nYou may call functions to help with the user's request. "
    "Their signatures, one JSON object a line:\n<tools>\n"
)
TOOLS_AFTER: Final = (
    "</tools>\n\nTo call a function, answer with a JSON object of its name and arguments:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>'
)


class ToolRef(dict[str, Any]):
    """A tool definition on its way through a template; ``tojson`` recognises it and leaves a sentinel.

    Its attributes end in ``_`` so that no template asks for them.
    """

    def __init__(self, shown: Mapping[str, Any], raw: Mapping[str, Any], index: int) -> None:
        super().__init__(shown)
        self.raw_ = raw
        self.index_ = index
        if isinstance(shown.get("function"), Mapping):
            self["function"] = ToolRef(shown["function"], raw["function"], index)


def tool_json(hide: Callable[[ToolRef, Mapping[str, Any]], str]) -> ToJSON:
    """A ``tojson`` that writes ``hide(tool, json.dumps options)`` for each tool, alone or in a list on one line."""

    def to_json(value: object, options: Mapping[str, Any]) -> str | None:
        if isinstance(value, ToolRef):
            return hide(value, options)
        if isinstance(value, list) and options["indent"] is None:
            items = cast("list[object]", value)
            refs = [v for v in items if isinstance(v, ToolRef)]
            if refs and len(refs) == len(items):
                comma = (options["separators"] or (", ", ": "))[0]
                return f"[{comma.join(hide(r, options) for r in refs)}]"
        return None

    return to_json


@dataclass(frozen=True)
class ToolStyle:
    """Where tools stand and what keeps them apart."""

    mode: Literal["before", "after", "apart", "text", "system"]
    # before/after: the separator belongs to each tool, on that side; apart: separators stay between the spans;
    # text: the template spells tools in its own way, so they are no spans; system: it ignores tools.
    separator: str = ""
    no_system: bool = False  # the template refuses a system message


def tool_style(template: ChatTemplate) -> ToolStyle:
    """The style of ``template``; found once per template."""
    return _probe(template.source, tuple(sorted(template.variables.items())))


@lru_cache(maxsize=32)
def _probe(source: str, variables: tuple[tuple[str, str], ...]) -> ToolStyle:
    template = ChatTemplate(source, dict(variables))
    names = ("minipic_probe_one", "minipic_probe_two")
    raw: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": n, "description": n, "parameters": {}}} for n in names
    ]
    marks = ["\ufdd0one\ufdd1", "\ufdd0two\ufdd1"]

    user = {"role": "user", "content": "u"}
    no_system = False
    messages = [{"role": "system", "content": "s"}, user]
    if template.wants_parts:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    try:
        template.render(messages)
    except TemplateError:
        no_system, messages = True, messages[1:]
    refs = [ToolRef(d, d, i) for i, d in enumerate(raw)]
    text = template.render(messages, tools=refs, to_json=tool_json(lambda tool, _: marks[tool.index_]))
    if [text.count(m) for m in marks] != [1, 1]:
        spelled = any(n in text for n in names) or any(m in text for m in marks)
        return ToolStyle("text" if spelled else "system", no_system=no_system)
    before, rest = text.split(marks[0])
    separator, after = rest.split(marks[1])
    if before.endswith(separator):
        return ToolStyle("before", separator, no_system)
    if after.startswith(separator):
        return ToolStyle("after", separator, no_system)
    return ToolStyle("apart", no_system=no_system)
