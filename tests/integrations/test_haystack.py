"""Haystack: documents stay spans through pipelines, streaming, tools, serialising, degrading."""

from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools.tool import Tool

from minipic_sdk import AsyncMiniPIC, MiniPIC, SpansOffWarning
from minipic_sdk.integrations.haystack import MiniPICChatGenerator, MiniPICPrefetcher
from minipic_sdk.testing import FakeServer

DOCUMENTS = [
    Document(id="delivery", content="Delivery costs five euros within the country, ten abroad."),
    Document(id="returns", content="Returns are free for thirty days.\nAfter that they are not accepted."),
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TEMPLATE = "{% for d in documents %}{{ d.content }}\n\n{% endfor %}Question: {{ question }}"


def clients(server: FakeServer) -> dict[str, Any]:
    return {
        "client": MiniPIC(http_client=server.http_client()),
        "async_client": AsyncMiniPIC(http_client=server.async_http_client()),
    }


def pipeline_on(server: FakeServer, **fields: Any) -> Pipeline:
    pipeline = Pipeline()
    given = clients(server)
    pipeline.add_component("prefetcher", MiniPICPrefetcher(client=given["client"]))
    pipeline.add_component("builder", ChatPromptBuilder([ChatMessage.from_user(TEMPLATE)], required_variables="*"))
    pipeline.add_component("llm", MiniPICChatGenerator(**given, **fields))
    pipeline.connect("prefetcher.documents", "builder.documents")
    pipeline.connect("prefetcher.documents", "llm.documents")
    pipeline.connect("builder.prompt", "llm.messages")
    return pipeline


def ask(documents: list[Document]) -> dict[str, Any]:
    return {"prefetcher": {"documents": documents}, "builder": {"question": "How much?"}}


def test_documents_stay_spans_through_a_pipeline(until_prefetched, server: FakeServer) -> None:
    MiniPICPrefetcher(client=clients(server)["client"]).run(documents=DOCUMENTS)
    until_prefetched()
    pipeline = pipeline_on(server)
    (reply,) = pipeline.run(ask(DOCUMENTS[::-1]))["llm"]["replies"]
    assert reply.text == "Five euros."
    assert [(s["name"], s["status"]) for s in reply.meta["spans"]] == [("returns", "hit"), ("delivery", "hit")]
    assert reply.meta["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_async_and_streams(server: FakeServer) -> None:
    chunks: list[StreamingChunk] = []

    async def later(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    pipeline = pipeline_on(server, streaming_callback=later)
    (reply,) = (await pipeline.run_async(ask(DOCUMENTS)))["llm"]["replies"]
    assert reply.text == "".join(c.content for c in chunks) == "Five euros."
    assert [c.start for c in chunks].count(True) == 1
    assert (chunks[-1].finish_reason, chunks[-1].meta["spans"]) == ("stop", reply.meta["spans"])
    llm = MiniPICChatGenerator(**clients(server))
    chunks.clear()
    assert llm.run("Hello", streaming_callback=chunks.append)["replies"][0].text == "Five euros."
    assert "".join(c.content for c in chunks) == "Five euros."
    assert (await llm.run_async("Hello"))["replies"][0].text == "Five euros."
    assert (await llm.run_async([])) == llm.run([]) == {"replies": []}
    alone = MiniPICChatGenerator(client=clients(server)["client"])
    assert (await alone.run_async("Hello"))["replies"][0].text == "Five euros."
    assert (await MiniPICPrefetcher(client=clients(server)["client"]).run_async(DOCUMENTS))["documents"] is DOCUMENTS


def add(a: int) -> int:
    return a + 1


ADD = Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}}, add)


def test_tools() -> None:
    server = FakeServer(reply=f"<think>hm</think>Let me add.\n{CALL}")
    chunks: list[StreamingChunk] = []
    llm = MiniPICChatGenerator(**clients(server), tools=[ADD], streaming_callback=chunks.append)
    (reply,) = llm.run("Add.")["replies"]
    assert (reply.text, reply.tool_calls[0].arguments) == ("Let me add.", {"a": 1})
    assert reply.reasoning.reasoning_text == "hm"
    assert "".join(c.content for c in chunks) == "Let me add."
    assert [d.tool_name for c in chunks for d in c.tool_calls or ()] == ["add"]
    assert (reply.meta["finish_reason"], chunks[-1].finish_reason) == ("tool_calls", "tool_calls")
    answer = ChatMessage.from_tool("2", origin=reply.tool_calls[0])
    (again,) = llm.run([ChatMessage.from_user("Add."), reply, answer])["replies"]
    assert again.meta["spans"][0]["name"] == "tool:add"
    broken = MiniPICChatGenerator(**clients(FakeServer(reply='{"name": "add", "arguments": "{"}')), tools=[ADD])
    (reply,) = broken.run("Add.")["replies"]
    assert (reply.tool_calls, reply.meta["unreadable_tool_calls"][0]["function"]["arguments"]) == ([], "{")


def callback(chunk: StreamingChunk) -> None:
    """Does nothing."""


def test_serialising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPIC_API_KEY", "secret")
    pipeline = Pipeline()
    llm = MiniPICChatGenerator(
        api_base_url="http://one", tools=[ADD], streaming_callback=callback, generation_kwargs={"temperature": 0}
    )
    pipeline.add_component("prefetcher", MiniPICPrefetcher(api_base_url="http://one", cache_salt="s"))
    pipeline.add_component("llm", llm)
    text = pipeline.dumps()
    assert "secret" not in text
    again = Pipeline.loads(text, allowed_modules=["minipic_sdk.integrations.haystack.*", __name__])
    assert again.dumps() == text
    loaded = again.get_component("llm")
    assert (loaded.streaming_callback, loaded.tools[0].function, loaded.generation_kwargs) == (
        callback,
        add,
        {"temperature": 0},
    )


def test_servers_without_the_plugin() -> None:
    server = FakeServer(kind="vllm", reply="Five euros.")
    llm = MiniPICChatGenerator(**clients(server))
    with pytest.warns(SpansOffWarning):
        (reply,) = llm.run(f"{DOCUMENTS[0].content} How much?", documents=DOCUMENTS)["replies"]
    assert (reply.text, reply.meta["spans"]) == ("Five euros.", [])
