"""LangChain's standard suites for our classes, less the server: a fake and a real one run them."""

from functools import reduce
from operator import add

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests

from minipic_sdk.integrations.langchain import ChatMiniPIC, MiniPICRetriever


class ChatSuite(ChatModelIntegrationTests):
    """Needs ``chat_model_params`` and ``model_override_value``."""

    @property
    def chat_model_class(self):
        return ChatMiniPIC

    @property
    def supports_json_mode(self):
        return True

    @property
    def supported_usage_metadata_details(self):
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False):
        llm = ChatMiniPIC(**self.chat_model_params)
        asked = {"input": "How much is delivery?", "documents": ["Delivery costs five euros. " * 20]}
        llm.invoke(**asked)
        answer = reduce(add, llm.stream(**asked)) if stream else llm.invoke(**asked)
        usage = answer.usage_metadata
        assert usage is not None
        assert usage["input_token_details"]["cache_read"] > 0  # the suite takes 0, too
        return answer


class Three(BaseRetriever):
    """As many documents as asked for."""

    k: int = 3

    def _get_relevant_documents(self, query, *, run_manager, k=None):
        return [Document(f"{query}: passage {i} of several") for i in range(k or self.k)]


class RetrieverSuite(RetrieversIntegrationTests):
    """Needs ``llm``."""

    @property
    def retriever_constructor(self):
        return MiniPICRetriever

    @property
    def retriever_constructor_params(self):
        return {"retriever": Three(), "llm": self.llm}

    @property
    def retriever_query_example(self):
        return "delivery"
