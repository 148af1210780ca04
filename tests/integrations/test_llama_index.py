"""LlamaIndex: nodes stay spans through query engines, streaming, tools, degrading."""

from typing import Any

import pytest
from llama_index.core import SummaryIndex
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from minipic_sdk import AsyncMiniPIC, InputError, MiniPIC, SpansOffWarning
from minipic_sdk.integrations.llama_index import MiniPICLLM, MiniPICPrefetch
from minipic_sdk.testing import FakeServer

DELIVERY = "Delivery costs five euros within the country, ten abroad."
RETURNS = "Returns are free for thirty days.\nAfter that they are not accepted."
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
NODES = [
    TextNode(id_="delivery", text=DELIVERY, metadata={"file": "delivery.md"}),
    TextNode(id_="returns", text=RETURNS),
]


def llm_on(server: FakeServer, **fields: Any) -> MiniPICLLM:
    clients = MiniPIC(http_client=server.http_client()), AsyncMiniPIC(http_client=server.async_http_client())
    return MiniPICLLM(client=clients[0], async_client=clients[1], **fields)


def raw(response: Any) -> Any:
    return response.raw


def prompts(server: FakeServer) -> list[Any]:
    return [r.body for r in server.requests if r.path == "/v1/completions"]


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.REFINE, ResponseMode.TREE_SUMMARIZE])
def test_nodes_stay_spans_through_a_query_engine(until_prefetched, server: FakeServer, mode: ResponseMode) -> None:
    llm = llm_on(server)
    MiniPICPrefetch(llm=llm).postprocess_nodes([NodeWithScore(node=n) for n in NODES])
    until_prefetched()
    for nodes in (NODES, NODES[::-1]):
        engine = SummaryIndex(nodes).as_query_engine(
            llm=llm, node_postprocessors=[MiniPICPrefetch(llm=llm)], response_mode=mode
        )
        assert str(engine.query("How much is delivery?")) == "Five euros."
    assert all("vllm_xargs" in body for body in prompts(server))
    engine.query("And returns?")
    quoting = ChatMessage(f"{RETURNS}\n\nfile: delivery.md\n\n{DELIVERY}?")
    spans = raw(llm.chat([quoting]))["spans"]
    assert [s.name for s in spans] == ["returns", "delivery"]
    assert spans[0].status == "hit"


async def test_async_and_streams(server: FakeServer) -> None:
    llm = llm_on(server)
    engine = SummaryIndex(NODES).as_query_engine(llm=llm, node_postprocessors=[MiniPICPrefetch(llm=llm)])
    assert str(await engine.aquery("How much?")) == "Five euros."
    synthesizer = get_response_synthesizer(llm=llm, streaming=True)
    streamed: Any = synthesizer.synthesize("How much?", nodes=[NodeWithScore(node=n) for n in NODES])
    assert "".join(streamed.response_gen) == "Five euros."
    pieces = [r async for r in await llm.astream_chat([ChatMessage("How much?")])]
    assert "".join(str(r.delta) for r in pieces) == pieces[-1].message.content == "Five euros."
    assert raw(pieces[-1])["usage"]["cached_tokens"] == 0
    assert [r.text async for r in await llm.astream_complete("How much?")][-1] == "Five euros."
    assert (await llm.acomplete("How much?")).text == llm.complete("How much?").text == "Five euros."
    assert [r.text for r in llm.stream_complete("How much?")][-1] == "Five euros."


async def test_a_blocking_client_alone_serves_async_calls(server: FakeServer) -> None:
    llm = MiniPICLLM(client=MiniPIC(http_client=server.http_client()))
    assert (await llm.achat([ChatMessage("Hello")])).message.content == "Five euros."
    assert "".join([str(r.delta) async for r in await llm.astream_chat([ChatMessage("Hello")])]) == "Five euros."


def add(a: int) -> int:
    """Add."""
    return a + 1


async def test_tools() -> None:
    server = FakeServer(reply=f"<think>hm</think>Let me add.\n{CALL}")
    llm = llm_on(server)
    tool = FunctionTool.from_defaults(add)
    response = llm.chat_with_tools([tool], "Add.", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(response)
    assert (call.tool_name, call.tool_kwargs) == ("add", {"a": 1})
    assert prompts(server)[0]["structured_outputs"]["json"]["properties"]["name"] == {"const": "add"}
    assert (await llm.apredict_and_call([tool], "Add.")).response == "2"
    *_, last = llm.stream_chat_with_tools([tool], "Add.")
    assert last.message.content == "Let me add."
    assert [b.block_type for b in last.message.blocks] == ["thinking", "text", "tool_call"]
    answer = ChatMessage(role="tool", content="2", additional_kwargs={"tool_call_id": call.tool_id})
    again = llm.chat_with_tools([tool], chat_history=[ChatMessage("Add."), last.message, answer])
    assert raw(again)["spans"][0].name == "tool:add"
    with pytest.raises(ValueError, match="called no tool"):
        llm_on(FakeServer()).predict_and_call([tool], "Add.")


class Price(BaseModel):
    """A price."""

    euros: int


async def test_structured_output() -> None:
    server = FakeServer(reply='{"name": "Price", "arguments": {"euros": 5}}')
    llm = llm_on(server).as_structured_llm(Price)
    assert llm.complete("How much?").raw == Price(euros=5)
    assert (await llm.acomplete("How much?")).raw == Price(euros=5)
    assert all("structured_outputs" in body for body in prompts(server))


def test_servers_without_the_plugin() -> None:
    server = FakeServer(kind="vllm", reply="Five euros.")
    llm = llm_on(server)
    with pytest.warns(SpansOffWarning):
        assert llm.metadata.context_window == 3900
    engine = SummaryIndex(NODES).as_query_engine(llm=llm, node_postprocessors=[MiniPICPrefetch(llm=llm)])
    assert str(engine.query("How much?")) == "Five euros."
    (body,) = [r.body for r in server.requests if r.body]
    assert RETURNS in body["messages"][-1]["content"]


def test_what_it_says_of_itself(server: FakeServer) -> None:
    llm = llm_on(server, model="fake", max_tokens=4, api_key="secret")
    assert (llm.metadata.context_window, llm.metadata.num_output) == (1 << 20, 4)
    assert llm.chat([ChatMessage("Hello")], temperature=0.5).message.content == "Five"
    assert prompts(server)[0]["temperature"] == 0.5
    assert "secret" not in str(llm.to_dict()) + repr(llm)
    with pytest.raises(InputError, match="only text"):
        llm.chat([ChatMessage(role="user", blocks=[TextBlock(text="What?"), ImageBlock(url="http://x")])])
