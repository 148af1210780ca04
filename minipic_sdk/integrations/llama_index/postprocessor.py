"""A node postprocessor that prefetches what was retrieved."""

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from minipic_sdk.integrations.llama_index.llm import MiniPICLLM


class MiniPICPrefetch(BaseNodePostprocessor):
    """Returns the nodes unchanged; the server begins to prefill them at once, and ``llm`` recognises them."""

    llm: MiniPICLLM

    @classmethod
    def class_name(cls) -> str:
        """See ``BaseComponent``."""
        return "MiniPICPrefetch"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        self.llm.prefetch(nodes)
        return nodes

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        await self.llm.aprefetch(nodes)
        return nodes
