"""What of a streamed turn can be shown."""

import pytest

from minipic_sdk._markup import parse_text
from minipic_sdk.integrations._deltas import ContentDeltas

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "",
        "<think>\nhm\n</think>\n\nso",
        "<think>cut off",
        "<thin air",
        f"Let me look.\n{CALL}",
        f"{CALL}\n{CALL}",
        f"a <tool{CALL}",
        "a <tool",
        f"<think>x</think>{CALL}",
        '{"name": "f", "arguments": {}}',
        '<|python_tag|>{"name": "f", "parameters": {}}',
        "<tool_call>{broken</tool_call>",
        "{not a call",
        " padded \n",
    ],
)
@pytest.mark.parametrize("tools", [True, False])
def test_what_is_shown_adds_up_to_the_content(text: str, size: int, tools: bool) -> None:
    deltas = ContentDeltas(tools=tools)
    shown = "".join(deltas.feed(text[i : i + size]) for i in range(0, len(text), size))
    content = parse_text(text, tools=tools).content
    assert (shown + deltas.rest(content)).strip() == (content or "").strip()


def test_text_is_shown_as_it_comes() -> None:
    deltas = ContentDeltas(tools=True)
    assert [deltas.feed(t) for t in ("Let ", "me", " <", "tool", "s>")] == ["Let", " me", "", "", " <tools>"]
