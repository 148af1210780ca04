"""LangChain: a chat model whose retrieved documents are spans, and a retriever that prefetches them.

    from minipic_sdk.integrations.langchain import ChatMiniPIC, MiniPICRetriever

    llm = ChatMiniPIC()
    retriever = MiniPICRetriever(retriever=store.as_retriever(), llm=llm)
    chain = {"context": retriever | format_docs, "question": RunnablePassthrough()} | prompt | llm

See docs/integrations/langchain.md.
"""

try:
    import langchain_core  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError(
        "minipic_sdk.integrations.langchain needs LangChain: pip install 'minipic-sdk[langchain]'"
    ) from error

from minipic_sdk.integrations.langchain.chat_models import ChatMiniPIC
from minipic_sdk.integrations.langchain.retrievers import MiniPICRetriever

__all__ = ["ChatMiniPIC", "MiniPICRetriever"]
