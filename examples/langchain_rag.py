"""RAG with LangChain: a FAISS index, a small embedding model, and documents whose KV is cached in any order.

    minipic serve                           # in another terminal
    python examples/langchain_rag.py        # asks; prints the answers and what came from the cache

Needs ``pip install 'minipic-sdk[langchain]' faiss-cpu tokenlearn-static-model``. The latter ships its weights (a
distilled static model of 64 dimensions), so nothing is downloaded.
"""

import sys
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import VectorStore
from static_model import get_embeddings

from minipic_sdk.integrations.langchain import ChatMiniPIC, MiniPICRetriever

PAGES = {
    "delivery.md": "Delivery within the country costs five euros and takes two working days. Orders above fifty euros "
    "are delivered free of charge. Abroad, delivery costs ten euros and takes a week.",
    "returns.md": "Goods may be returned within thirty days, unused and in their box. The shop pays for the return "
    "parcel and refunds the price within a week of its arrival.",
    "payment.md": "The shop takes credit cards, bank transfers and cash on delivery. Invoices are sent by mail on the "
    "day of the order and are due within fourteen days.",
    "repairs.md": "Bicycles are repaired in the workshop behind the shop, without an appointment, from Tuesday to "
    "Saturday. A flat tyre is mended while you wait and costs twelve euros.",
    "opening.md": "The shop is open from nine in the morning to six in the evening, on Saturdays to two. It is closed "
    "on Sundays, on Mondays and on public holidays.",
}
QUESTIONS = (
    "What does delivery abroad cost?",
    "How long may I return goods after delivery?",
    "When are bicycles repaired, and is the shop open on Mondays?",
)
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer in one sentence, from the context alone."),
        ("human", "Context:\n{context}\n\nQuestion: {question}"),
    ]
)


class StaticEmbeddings(Embeddings):
    """The model that ``tokenlearn-static-model`` ships."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: Any = get_embeddings(texts)
        return vectors

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class FaissStore(VectorStore):
    """Cosine similarity over a flat FAISS index."""

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        self._documents: list[Document] = []
        self._index: faiss.IndexFlatIP | None = None

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> "FaissStore":
        store = cls(embedding)
        vectors = _unit(embedding.embed_documents(texts))
        store._index = faiss.IndexFlatIP(vectors.shape[1])
        store._index.add(vectors)
        store._documents = [
            Document(t, metadata=m) for t, m in zip(texts, metadatas or [{} for _ in texts], strict=True)
        ]
        return store

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        if self._index is None:
            return []
        _, found = self._index.search(_unit([self._embedding.embed_query(query)]), min(k, len(self._documents)))
        return [self._documents[i] for i in found[0]]


def _unit(vectors: Sequence[Sequence[float]]) -> np.ndarray:
    array = np.asarray(vectors, np.float32)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(d.page_content for d in documents)


def chain_over(llm: ChatMiniPIC) -> Runnable[str, Any]:
    store = FaissStore.from_texts(list(PAGES.values()), StaticEmbeddings(), [{"source": name} for name in PAGES])
    retriever = MiniPICRetriever(retriever=store.as_retriever(search_kwargs={"k": 3}), llm=llm)
    return {"context": retriever | joined, "question": RunnablePassthrough()} | PROMPT | llm


def main(llm: ChatMiniPIC) -> int:
    chain = chain_over(llm)
    for question in QUESTIONS:
        answer = chain.invoke(question)
        usage = answer.usage_metadata
        spans = ", ".join(f"{s['name']} {s['status']}" for s in answer.response_metadata["spans"])
        print(question)
        print(" ", answer.content)
        print(
            f"  {usage['input_token_details'].get('cache_read', 0)} of {usage['input_tokens']} tokens cached: {spans}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(ChatMiniPIC(temperature=0, max_tokens=60)))
