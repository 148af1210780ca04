"""Reading tool calls and reasoning out of text, for servers that don't parse them.

Covers ``<think>...</think>``, ``<tool_call>{json}</tool_call>`` (Hermes, Qwen; what compose asks for when the template
has no place for tools) and a bare JSON object of a call (Llama 3.1).
"""

import json
import re
import secrets
from typing import Any, Final, cast

from minipic_sdk._completions import ChatParts
from minipic_sdk.results import ToolCall

_CALL: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


def parse_text(text: str, *, tools: bool) -> ChatParts:
    """Cut an assistant's text into content, reasoning and, if ``tools`` were offered, tool calls."""
    reasoning: str | None = None
    before, end, behind = text.partition("</think>")
    if end:
        reasoning, text = before.rpartition("<think>")[2].strip() or None, behind.lstrip("\n")
    elif text.lstrip().startswith("<think>"):
        reasoning, text = text.lstrip().removeprefix("<think>").strip() or None, ""  # cut off while thinking
    if not tools:
        return ChatParts(text, reasoning)
    calls: list[ToolCall] = []
    for match in _CALL.finditer(text):
        call = _call(match[1])
        if call is None:
            return ChatParts(text, reasoning)  # broken JSON stays visible, as vLLM leaves it
        calls.append(call)
    if calls:
        return ChatParts(_CALL.sub("", text).strip() or None, reasoning, tuple(calls))
    bare = _call(text.strip().removeprefix("<|python_tag|>"))
    return ChatParts(None, reasoning, (bare,)) if bare is not None else ChatParts(text, reasoning)


def _call(text: str) -> ToolCall | None:
    try:
        body: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, Any]", body)
    arguments = fields.get("arguments", fields.get("parameters"))
    if not isinstance(fields.get("name"), str) or arguments is None:
        return None
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{secrets.token_hex(12)}", fields["name"], spelled)
