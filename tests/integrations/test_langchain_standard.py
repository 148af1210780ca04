"""LangChain's own standard suites; over_http has them against a real server."""

import json

from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_suite import ChatSuite, RetrieverSuite
from minipic_sdk import AsyncMiniPIC, MiniPIC
from minipic_sdk.integrations.langchain import ChatMiniPIC
from minipic_sdk.testing import FakeServer


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


class TestIntegration(ChatSuite):
    """A fake with a script: what the adapter does with a model that is able."""

    @property
    def chat_model_params(self):
        server = FakeServer(reply=scripted)
        clients = MiniPIC(http_client=server.http_client()), AsyncMiniPIC(http_client=server.async_http_client())
        return {"client": clients[0], "async_client": clients[1], "model": "fake"}

    @property
    def model_override_value(self):
        return "fake"


class TestRetriever(RetrieverSuite):
    @property
    def llm(self):
        return ChatMiniPIC(client=MiniPIC(http_client=FakeServer().http_client()))
