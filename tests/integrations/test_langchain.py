"""LangChain: span identity through LCEL, streaming, tools, degrading."""

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from pydantic import BaseModel

from minipic_sdk import AsyncMiniPIC, InputError, MiniPIC, SpansOffWarning
from minipic_sdk.integrations.langchain import ChatMiniPIC, MiniPICRetriever
from minipic_sdk.testing import FakeServer

DELIVERY = "Delivery costs five euros within the country, ten abroad."
RETURNS = "Returns are free for thirty days.\nAfter that they are not accepted."
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Shop(BaseRetriever):
    turned: bool = False

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found = [
            Document(DELIVERY, metadata={"source": "delivery.md"}),
            Document(RETURNS, metadata={"source": "returns.md"}),
        ]
        return found[::-1] if self.turned else found


def llm_on(server: FakeServer, **fields: Any) -> ChatMiniPIC:
    clients = MiniPIC(http_client=server.http_client()), AsyncMiniPIC(http_client=server.async_http_client())
    return ChatMiniPIC(client=clients[0], async_client=clients[1], **fields)


def joined(documents: list[Document]) -> str:
    return "\n\n".join(d.page_content for d in documents)


def chain_of(llm: ChatMiniPIC, **fields: Any) -> Any:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from the context."), ("human", "Context:\n{context}\n\nQuestion: {question}")]
    )
    retriever = MiniPICRetriever(retriever=Shop(**fields), llm=llm)
    return {"context": retriever | joined, "question": RunnablePassthrough()} | prompt | llm


def statuses(message: AIMessage) -> dict[str, str]:
    return {s["name"]: s["status"] for s in message.response_metadata["spans"]}


def test_retrieved_documents_stay_spans_through_a_chain(until_prefetched, server: FakeServer) -> None:
    llm = llm_on(server)
    MiniPICRetriever(retriever=Shop(), llm=llm).invoke("delivery")
    until_prefetched()
    first = chain_of(llm).invoke("How much is delivery?")
    assert statuses(first) == {"delivery.md": "hit", "returns.md": "hit"}
    second = chain_of(llm, turned=True).invoke("And returns?")
    assert statuses(second) == {"returns.md": "hit", "delivery.md": "hit"}
    assert second.usage_metadata["input_token_details"]["cache_read"] > 0
    assert second.content == "Five euros."


def test_the_model_reads_what_it_would_read_anyway() -> None:
    seen: list[str] = []
    server = FakeServer(reply=lambda text: seen.append(text) or "ok")
    llm = llm_on(server)
    prompt = chain_of(llm).first | chain_of(llm).middle[0]
    asked = prompt.invoke("How much?")
    llm.invoke(asked)
    llm_on(server).invoke(asked)  # knows no documents
    assert seen[0] == seen[1]
    bodies = [r.body for r in server.requests if r.path == "/v1/completions"]
    assert ["vllm_xargs" in b for b in bodies] == [True, False]


async def test_async_and_streams(server: FakeServer) -> None:
    chain = chain_of(llm_on(server))
    assert (await chain.ainvoke("How much?")).content == "Five euros."
    chunks = [c async for c in chain.astream("How much?")]
    whole = sum(chunks[1:], start=chunks[0])
    assert (whole.content, len(chunks) > 3) == ("Five euros.", True)
    assert set(statuses(whole).values()) == {"hit"}
    assert whole.usage_metadata["input_token_details"]["cache_read"] > 0
    assert [c async for c in (chain | StrOutputParser()).astream("How much?")][-2:] != []


def test_one_model_in_several_event_loops(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = [server.async_http_client() for _ in range(2)]  # connections of one loop are no use in another
    monkeypatch.setattr("httpx.AsyncClient", ready.pop)
    llm = ChatMiniPIC()
    for _ in range(2):
        assert asyncio.run(llm.ainvoke("Hello")).content == "Five euros."


async def test_a_blocking_client_alone_serves_async_calls(server: FakeServer) -> None:
    llm = ChatMiniPIC(client=MiniPIC(http_client=server.http_client()))
    await llm.aprefetch([DELIVERY])
    assert (await llm.ainvoke("Hello")).content == "Five euros."
    assert "".join([c.text async for c in llm.astream("Hello")]) == "Five euros."


def test_an_agents_retriever_tool(server: FakeServer) -> None:
    llm = llm_on(server)
    search = create_retriever_tool(MiniPICRetriever(retriever=Shop(), llm=llm), "search", "Search the shop's pages.")
    call = {"name": "search", "args": {"query": "delivery"}, "id": "1", "type": "tool_call"}
    answer = search.invoke(call)
    assert isinstance(answer, ToolMessage)
    got = llm.bind_tools([search]).invoke([HumanMessage("How much?"), AIMessage("", tool_calls=[call]), answer])
    assert list(statuses(got)) == ["tool:search", "delivery.md", "returns.md"]


def test_only_what_was_retrieved_becomes_a_span(server: FakeServer) -> None:
    llm = llm_on(server)
    llm.prefetch([Document(DELIVERY, id="7"), "", "tiny"])
    asked = [
        SystemMessage(f"{RETURNS} tiny"),
        HumanMessage([{"type": "text", "text": DELIVERY}, {"type": "text", "text": "?"}]),
        AIMessage(DELIVERY),
        HumanMessage("Sure?"),
    ]
    assert list(statuses(llm.invoke(asked))) == ["7"]


def test_documents_given_with_a_call(server: FakeServer) -> None:
    bound = llm_on(server).bind(documents=[Document(DELIVERY, id="7"), RETURNS])
    assert "7" in statuses(bound.invoke("How much?"))
    assert set(statuses(bound.invoke("And now?")).values()) == {"hit"}


def test_tool_calls_streamed_without_their_markup() -> None:
    server = FakeServer(reply=f"<think>\nhm\n</think>\n\nLet me add.\n{CALL}")

    def add(a: int) -> int:
        """Add."""
        return a

    chunks = list(llm_on(server).bind_tools([add]).stream("Add."))
    assert "".join(c.text for c in chunks) == "Let me add."
    whole = sum(chunks[1:], start=chunks[0])
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("add", {"a": 1})]
    assert whole.additional_kwargs["reasoning_content"] == "hm"
    broken = llm_on(FakeServer(reply='{"name": "add", "arguments": "{"}')).bind_tools([add]).invoke("Add.")
    assert broken.invalid_tool_calls[0]["args"] == "{"


class Price(BaseModel):
    """A price."""

    euros: int


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_structured_output(method: str) -> None:
    answer = '{"euros": 5}'
    server = FakeServer(reply=f'{{"name": "Price", "arguments": {answer}}}' if method == "function_calling" else answer)
    asked = llm_on(server).with_structured_output(Price, method=method)
    assert asked.invoke("How much?") == Price(euros=5)
    (body,) = [r.body for r in server.requests if r.path == "/v1/completions"]
    if method == "function_calling":
        assert body["structured_outputs"]["json"]["properties"]["name"] == {"const": "Price"}
    else:
        assert body["response_format"]["type"] == method.replace("json_mode", "json_object")
    raw: Any = llm_on(FakeServer(reply="no")).with_structured_output(Price, method=method, include_raw=True).invoke("?")
    assert raw["parsed"] is None
    assert (raw["parsing_error"] is None) == (method == "function_calling")
    with pytest.raises(InputError, match=r"method=|no option"):
        llm_on(server).with_structured_output(Price, method="magic")
    with pytest.raises(InputError, match="no option 'nonsense'"):
        llm_on(server).with_structured_output(Price, nonsense=1)


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_servers_without_the_plugin(kind: Any) -> None:
    server = FakeServer(kind=kind, reply="Five euros.")
    chain = chain_of(llm_on(server))
    with pytest.warns(SpansOffWarning):
        answer = chain.invoke("How much?")
    assert "".join(c.text for c in chain.stream("How much?")) == "Five euros."
    assert (answer.content, answer.response_metadata["spans"]) == ("Five euros.", [])
    text = f"Context:\n{DELIVERY}\n\n{RETURNS}\n\nQuestion: How much?"
    assert [r.body["messages"][1]["content"] for r in server.requests if r.body] == [text, text]


def test_sampling_options_and_another_model_for_one_call(server: FakeServer) -> None:
    llm = llm_on(server, temperature=0, max_tokens=4, stop=["x"], model_kwargs={"top_k": 3})
    assert llm.invoke("Hello", model="adapter", seed=7).content == "Five"
    body = next(r.body for r in server.requests if r.path == "/v1/completions")
    picked = {k: body[k] for k in ("model", "temperature", "max_tokens", "stop", "top_k", "seed")}
    assert picked == {"model": "adapter", "temperature": 0, "max_tokens": 4, "stop": ["x"], "top_k": 3, "seed": 7}
    with pytest.raises(InputError, match="no option 'temprature'"):
        llm.invoke("Hello", temprature=1)
