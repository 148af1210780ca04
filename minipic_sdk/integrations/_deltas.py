"""Streaming what is meant for the user: without reasoning, without the markup of tool calls."""

from typing import Final

_THINK, _THOUGHT, _CALL = "<think>", "</think>", "<tool_call>"
_BARE: Final = ("{", "<|python_tag|>")  # a call without tags begins so


class ContentDeltas:
    """Takes a turn's raw text as it comes and says what of it can be shown already."""

    def __init__(self, *, tools: bool) -> None:
        """``tools``: whether any are offered; else their markup is ordinary text."""
        self._tools = tools
        self._text = ""
        self._shown = ""

    def feed(self, text: str) -> str:
        """What can be shown now; empty while it could still turn out to be reasoning or a call."""
        self._text += text
        visible = _visible(self._text, self._tools)
        delta = visible[len(self._shown) :]
        self._shown += delta
        return delta

    def rest(self, content: str | None) -> str:
        """What of the parsed turn's ``content`` hasn't been shown."""
        whole = content or ""
        return whole[len(self._shown) :] if whole.startswith(self._shown) else ""


def _visible(text: str, tools: bool) -> str:
    begun = text.lstrip()
    if begun and len(begun) < len(_THINK) and _THINK.startswith(begun):
        return ""
    if begun.startswith(_THINK):
        text = begun.partition(_THOUGHT)[2].lstrip("\n")
    if not tools:
        return text
    begun = text.lstrip()
    if any(begun.startswith(b) or b.startswith(begun) for b in _BARE):
        return ""
    before, call, _ = text.partition(_CALL)
    if not call:
        half = next((n for n in range(len(_CALL) - 1, 0, -1) if before.endswith(_CALL[:n])), 0)
        before = before[: len(before) - half]
    return before.rstrip()  # whitespace before a call is not content
