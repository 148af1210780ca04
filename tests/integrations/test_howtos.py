"""The first program of each how-to runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from minipic_sdk.testing import FakeServer

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
TEXTS = [
    "Delivery costs five euros within the country, ten abroad.",
    "Returns are free for thirty days; after that none are accepted.",
]


def run(page: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    client = server.http_client()
    monkeypatch.setattr("httpx.Client", lambda: client)
    block = re.search(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert block is not None
    exec(compile(block[1], page, "exec"), names)
    return names


def sent_spans(server: FakeServer) -> list[bool]:
    return ["vllm_xargs" in r.body for r in server.requests if r.path == "/v1/completions"]


def test_langchain(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(TEXTS, DeterministicFakeEmbedding(size=8))
    answer = run("langchain.md", server, monkeypatch, store=store)["answer"]
    assert len(answer.response_metadata["spans"]) == 2


def test_llama_index(server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from llama_index.core import SummaryIndex
    from llama_index.core.schema import TextNode

    run("llama-index.md", server, monkeypatch, index=SummaryIndex([TextNode(text=t) for t in TEXTS]))
    assert capsys.readouterr().out == "Five euros.\n"
    assert sent_spans(server) == [True]


def test_haystack(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from haystack import Document
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    store.write_documents([Document(content=t) for t in TEXTS])
    names = run("haystack.md", server, monkeypatch, retriever=InMemoryBM25Retriever(store))
    question = "What does delivery cost?"
    answer = names["pipeline"].run({"retriever": {"query": question}, "builder": {"question": question}})
    assert answer["llm"]["replies"][0].text == "Five euros."
    assert sent_spans(server) == [True]
