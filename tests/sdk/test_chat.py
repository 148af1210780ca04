"""Chat turns: composed, answered, parsed."""

import json
from typing import Any

import httpx
import pytest

from minipic_sdk import Document, InputError, MiniPIC, SpansOffWarning, ToolCall
from minipic_sdk._markup import parse_text
from minipic_sdk.testing import FakeServer

TOOLS = [{"type": "function", "function": {"name": "time", "description": "Tell it."}}]
ASK = [{"role": "user", "content": "Is it late?"}]
CALL = '<tool_call>\n{"name": "time", "arguments": {"zone": "é"}}\n</tool_call>'


def test_a_turn() -> None:
    server = FakeServer(reply="Yes.")
    with MiniPIC(http_client=server.http_client()) as client:
        result = client.chat(ASK, documents=["a", Document("b", name="b")], tools=TOOLS, memory=["m"], max_tokens=9)
        assert (result.content, result.text, result.reasoning, result.tool_calls) == ("Yes.", "Yes.", None, ())
        assert [s.name for s in result.spans if ":" in s.name or s.name == "b"] == ["tool:time", "b"]
        assert result.message == {"role": "assistant", "content": "Yes."}
        later = [*ASK, result.message, {"role": "user", "content": "Sure?"}]
        second = client.chat(later, documents=[Document("b", name="b"), "c"], tools=TOOLS)
        assert {s.name: s.status for s in second.spans}["b"] == "hit"


def test_tool_calls() -> None:
    server = FakeServer(reply=f"Let me look.\n{CALL}")
    with MiniPIC(http_client=server.http_client()) as client:
        result = client.chat(ASK, tools=TOOLS)
        (call,) = result.tool_calls
        assert (result.content, call.name, call.parsed()) == ("Let me look.", "time", {"zone": "é"})
        answer = {"role": "tool", "tool_call_id": call.id, "content": "23:00"}
        client.chat([*ASK, result.message, answer], tools=TOOLS)
        assert result.message["tool_calls"][0]["function"]["name"] == "time"
        streamed = client.chat(ASK, tools=TOOLS, stream=True)
        assert "".join(c.text for c in streamed) == f"Let me look.\n{CALL}"
        assert streamed.result().tool_calls[0].arguments == '{"zone": "é"}'
        assert client.chat(ASK, tools=TOOLS, tool_choice="none").tool_calls == ()


def forced(server: FakeServer) -> Any:
    bodies = [r.body for r in server.requests if r.path == "/v1/completions"]
    return bodies[-1]["structured_outputs"]["json"]


def test_forced_tool_calls() -> None:
    server = FakeServer(reply='{"name": "find", "arguments": {"x": {"y": 1}}}')
    parameters = {"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "object"}}}
    tools = [*TOOLS, {"name": "find", "parameters": parameters}]
    with MiniPIC(http_client=server.http_client()) as client:
        named = {"type": "function", "function": {"name": "find"}}
        assert client.chat(ASK, tools=tools, tool_choice=named).tool_calls[0].parsed() == {"x": {"y": 1}}
        schema = forced(server)
        assert schema["properties"] == {
            "name": {"const": "find"},
            "arguments": {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}},
        }
        assert schema["$defs"] == {"X": {"type": "object"}}
        client.chat(ASK, tools=tools, tool_choice="required")
        schema = forced(server)
        assert [s["properties"]["name"]["const"] for s in schema["anyOf"]] == ["time", "find"]
        for choice in ("any", {"function": {"name": "other"}}):
            with pytest.raises(InputError, match="tool_choice="):
                client.chat(ASK, tools=tools, tool_choice=choice)


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({}, {"const": {}}),
        ({"type": "object", "properties": {}, "required": [], "title": "T"}, {"const": {}}),
        (
            {"properties": {}, "additionalProperties": True},
            {"type": "object", "properties": {}, "additionalProperties": True},
        ),
        ({"$ref": "#/$defs/X"}, {"type": "object", "$ref": "#/$defs/X"}),
        ({"properties": {"x": {}}}, {"type": "object", "properties": {"x": {}}}),
    ],
    ids=["none", "no properties", "any", "elsewhere", "one"],
)
def test_a_forced_call_without_parameters_has_no_room_for_any(parameters: Any, arguments: Any) -> None:
    server = FakeServer()
    with MiniPIC(http_client=server.http_client()) as client:
        client.chat(ASK, tools=[{"name": "now", "parameters": parameters}], tool_choice="required")
    assert forced(server)["properties"]["arguments"] == arguments


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "names"),
    [
        ("plain", "plain", None, []),
        ("<think>\nhm\n</think>\n\nso", "so", "hm", []),
        ("hm</think>so", "so", "hm", []),  # the template opened it
        ("<think>\ncut off", "", "cut off", []),
        (f"{CALL}\n{CALL}", None, None, ["time", "time"]),
        (f"<think>x</think>{CALL}", None, "x", ["time"]),
        ('{"name": "time", "parameters": {}}', None, None, ["time"]),
        ('<|python_tag|>{"name": "time", "parameters": {}}', None, None, ["time"]),
        ("<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", None, []),
        ('{"name": 3}', '{"name": 3}', None, []),
        ("[1]", "[1]", None, []),
    ],
)
def test_parsing(text: str, content: str | None, reasoning: str | None, names: list[str]) -> None:
    parts = parse_text(text, tools=True)
    assert (parts.content, parts.reasoning, [c.name for c in parts.tool_calls]) == (content, reasoning, names)


def test_markup_of_tools_stays_where_none_were_offered() -> None:
    assert parse_text(CALL, tools=False).content == CALL


def derendering(server: FakeServer, status: int, seen: list[Any]) -> httpx.Client:
    def handle(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/derender"):
            return server._handle(request)
        seen.append(json.loads(request.content))
        function = {"name": "time", "arguments": "{}"}
        message = {
            "role": "assistant",
            "content": "c",
            "reasoning": "r",
            "tool_calls": [{"id": "7", "function": function}],
        }
        return httpx.Response(status, json={"choices": [{"index": 0, "message": message}]})

    return httpx.Client(transport=httpx.MockTransport(handle))


def test_vllms_own_parsers_are_asked_first() -> None:
    server, seen = FakeServer(reply="raw"), []
    with MiniPIC(http_client=derendering(server, 200, seen)) as client:
        result = client.chat(ASK, documents=["secret"], tools=TOOLS)
    assert (result.content, result.reasoning) == ("c", "r")
    assert result.tool_calls == (ToolCall("7", "time", "{}"),)
    (body,) = seen
    assert body["generate_response"]["choices"] == [
        {"index": 0, "token_ids": server.profile.encode("raw"), "finish_reason": "stop"}
    ]
    assert body["chat_request"]["messages"] == ASK
    assert body["chat_request"]["tools"] == TOOLS


@pytest.mark.parametrize(("status", "asked"), [(403, 1), (404, 1), (500, 2)])
def test_parsers_that_are_off(status: int, asked: int) -> None:
    server, seen = FakeServer(reply=CALL), []
    with MiniPIC(http_client=derendering(server, status, seen)) as client:
        for _ in range(2):
            assert client.chat(ASK, tools=TOOLS).tool_calls[0].name == "time"
    assert len(seen) == asked


def test_without_the_plugin_the_server_does_it_all() -> None:
    server = FakeServer(reply="Yes.", kind="openai")
    with MiniPIC(http_client=server.http_client()) as client:
        with pytest.warns(SpansOffWarning):
            result = client.chat(ASK, documents=["d"], tools=TOOLS, tool_choice="required")
        assert (result.content, result.spans) == ("Yes.", ())
        body = server.requests[-1].body
        assert body["messages"] == [{"role": "user", "content": "d\n\nIs it late?"}]
        assert (body["tools"], body["tool_choice"]) == (TOOLS, "required")
        assert client.chat(ASK, stream=True).result().content == "Yes."
        with pytest.raises(InputError, match="need a user message"):
            client.chat([{"role": "system", "content": "s"}], documents=["d"])


@pytest.mark.filterwarnings("ignore::minipic_sdk.SpansOffWarning")
def test_streamed_tool_calls_of_other_servers() -> None:
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "hm "},
        {"reasoning_content": "so"},
        {"tool_calls": [{"index": 0, "id": "7", "function": {"name": "time", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    events = [json.dumps({"id": "x", "choices": [{"index": 0, "delta": d}]}) for d in deltas]
    content = "".join(f"data: {e}\r\n\r\n" for e in [*events, "[DONE]"]).encode()
    server = FakeServer(kind="openai")

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("chat/completions"):
            return httpx.Response(200, content=content)
        return server._handle(request)

    with MiniPIC(http_client=httpx.Client(transport=httpx.MockTransport(handle))) as client:
        result = client.chat(ASK, tools=TOOLS, stream=True).result()
    assert result.tool_calls == (ToolCall("7", "time", '{"a": 1}'),)
    assert (result.content, result.reasoning) == (None, "hm so")
