"""Haystack: a chat generator whose documents are spans, and a component that prefetches them.

    from minipic_sdk.integrations.haystack import MiniPICChatGenerator, MiniPICPrefetcher

    pipeline.add_component("prefetcher", MiniPICPrefetcher())
    pipeline.add_component("llm", MiniPICChatGenerator())
    pipeline.connect("retriever.documents", "prefetcher.documents")
    pipeline.connect("prefetcher.documents", "prompt_builder.documents")
    pipeline.connect("prefetcher.documents", "llm.documents")
    pipeline.connect("prompt_builder.prompt", "llm.messages")

See docs/integrations/haystack.md.
"""

try:
    import haystack  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError(
        "minipic_sdk.integrations.haystack needs Haystack: pip install 'minipic-sdk[haystack]'"
    ) from error

from minipic_sdk.integrations.haystack.chat_generator import MiniPICChatGenerator
from minipic_sdk.integrations.haystack.prefetcher import MiniPICPrefetcher

__all__ = ["MiniPICChatGenerator", "MiniPICPrefetcher"]
