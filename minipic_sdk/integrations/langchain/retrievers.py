"""A retriever around yours that prefetches what it returns."""

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from minipic_sdk.integrations.langchain.chat_models import ChatMiniPIC


class MiniPICRetriever(BaseRetriever):
    """Returns the documents of ``retriever``, unchanged; the server begins to prefill them at once.

    ``llm`` then recognises their texts wherever a prompt quotes them, and sends them as spans.
    """

    retriever: BaseRetriever
    llm: ChatMiniPIC
    k: int | None = None  # documents, at most; None: as many as ``retriever`` returns

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        wanted = self._wanted(kwargs)
        found = self.retriever.invoke(query, config={"callbacks": run_manager.get_child()}, **wanted)[: wanted.get("k")]
        self.llm.prefetch(found)
        return found

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        wanted = self._wanted(kwargs)
        found = await self.retriever.ainvoke(query, config={"callbacks": run_manager.get_child()}, **wanted)
        found = found[: wanted.get("k")]
        await self.llm.aprefetch(found)
        return found

    def _wanted(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs if self.k is None else {"k": self.k, **kwargs}
