"""Examples run, here against the fake server."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from minipic_sdk import MiniPIC
from minipic_sdk.integrations.langchain import ChatMiniPIC
from minipic_sdk.testing import FakeServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_langchain_rag(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    rag = load("langchain_rag")
    llm = ChatMiniPIC(client=MiniPIC(http_client=server.http_client()))
    assert rag.main(llm) == 0
    told = capsys.readouterr().out
    assert told.count("Five euros.") == len(rag.QUESTIONS)
    assert "delivery.md hit" in told
    store = rag.FaissStore.from_texts(list(rag.PAGES.values()), rag.StaticEmbeddings())
    for question, page in zip(rag.QUESTIONS, ("delivery.md", "returns.md", "repairs.md"), strict=True):
        assert rag.PAGES[page] in [d.page_content for d in store.similarity_search(question, k=2)]
