"""LlamaIndex: an LLM whose nodes are spans, and a node postprocessor that prefetches them.

    from minipic_sdk.integrations.llama_index import MiniPICLLM, MiniPICPrefetch

    llm = MiniPICLLM()
    engine = index.as_query_engine(llm=llm, node_postprocessors=[MiniPICPrefetch(llm=llm)])

See docs/integrations/llama-index.md.
"""

try:
    import llama_index.core  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError(
        "minipic_sdk.integrations.llama_index needs LlamaIndex: pip install 'minipic-sdk[llama-index]'"
    ) from error

from minipic_sdk.integrations.llama_index.llm import MiniPICLLM
from minipic_sdk.integrations.llama_index.postprocessor import MiniPICPrefetch

__all__ = ["MiniPICLLM", "MiniPICPrefetch"]
