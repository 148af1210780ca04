"""LangChain's own standard suites against a real server and a real model."""

import pytest

from langchain_suite import ChatSuite, RetrieverSuite
from minipic_sdk.integrations.langchain import ChatMiniPIC
from over_http import KEY, MODEL


class TestChat(ChatSuite):
    @pytest.fixture(autouse=True)
    def _server(self, served):
        self.url = served

    @property
    def chat_model_params(self):
        return {"base_url": self.url, "api_key": KEY, "model": MODEL, "temperature": 0, "max_tokens": 64}

    @property
    def model_override_value(self):
        return MODEL


class TestRetriever(RetrieverSuite):
    @pytest.fixture(autouse=True)
    def _server(self, served):
        self.llm = ChatMiniPIC(base_url=served, api_key=KEY)
