"""LangChain's own standard suites; MINIPIC_TEST_URL runs them against a real server."""

import json
import os
from functools import reduce
from operator import add

import httpx
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from minipic_sdk import AsyncMiniPIC, MiniPIC
from minipic_sdk.integrations.langchain import ChatMiniPIC, MiniPICRetriever
from minipic_sdk.testing import FakeServer

URL = os.environ.get("MINIPIC_TEST_URL")


class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self):
        return ChatMiniPIC

    @property
    def chat_model_params(self):
        return {"model": "fake", "base_url": "http://127.0.0.1:1"}

    @property
    def init_from_env_params(self):
        env = {"MINIPIC_API_KEY": "secret", "MINIPIC_BASE_URL": "http://127.0.0.1:1"}
        return env, {"model": "fake"}, {"api_key": "secret", "base_url": "http://127.0.0.1:1"}


CALLS = {
    "magic_function_no_args": {},
    "magic_function": {"input": 3},
    "greeting_generator": {"answer_style": "pirate"},
    "get_weather": {"location": "San Francisco, CA"},
    "unicode_customer": {"customer_name": "你好啊集团, こんにちは株式会社", "description": "é"},
    "joke": {"setup": "Why?", "punchline": "Because."},
    "Joke": {"setup": "Why?", "punchline": "Because."},
}


def scripted(prompt: str) -> str:
    """Calls the tool that is offered, tells the joke that is asked for, or talks."""
    offered = next((n for n in CALLS if f'"name": "{n}"' in prompt), None)
    if offered is not None and "<|im_start|>tool" not in prompt:
        return f'<tool_call>\n{{"name": "{offered}", "arguments": {json.dumps(CALLS[offered])}}}\n</tool_call>'
    return json.dumps(CALLS["joke"]) if "joke" in prompt else "A fairly ordinary answer of several words."


class TestIntegration(ChatModelIntegrationTests):
    """Against the server at MINIPIC_TEST_URL; without it, against a fake with a script."""

    @property
    def chat_model_class(self):
        return ChatMiniPIC

    @property
    def chat_model_params(self):
        if URL:
            return {"base_url": URL, "model": self.model_override_value, "temperature": 0}
        server = FakeServer(reply=scripted)
        clients = MiniPIC(http_client=server.http_client()), AsyncMiniPIC(http_client=server.async_http_client())
        return {"client": clients[0], "async_client": clients[1], "model": "fake"}

    @property
    def model_override_value(self):
        if not URL:
            return "fake"
        key = {"Authorization": f"Bearer {os.environ.get('MINIPIC_API_KEY', 'none')}"}
        return httpx.get(f"{URL}/v1/models", headers=key).json()["data"][0]["id"]

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
        return reduce(add, llm.stream(**asked)) if stream else llm.invoke(**asked)


class Three(BaseRetriever):
    """As many documents as asked for."""

    k: int = 3

    def _get_relevant_documents(self, query, *, run_manager, k=None):
        return [Document(f"{query}: passage {i} of several") for i in range(k or self.k)]


class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return MiniPICRetriever

    @property
    def retriever_constructor_params(self):
        llm = ChatMiniPIC(base_url=URL) if URL else ChatMiniPIC(client=MiniPIC(http_client=FakeServer().http_client()))
        return {"retriever": Three(), "llm": llm}

    @property
    def retriever_query_example(self):
        return "delivery"
