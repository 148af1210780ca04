"""Real servers over HTTP, with the bundled model: MiniPIC behind an API key, and stock vLLM. Each starts once."""

from collections.abc import Iterator

import pytest

from minipic_cli.models import default_model_dir
from minipic_cli.servers import minipic_server, stock_server
from minipic_sdk import MiniPIC, ModelProfile
from over_http import KEY, OPTIONS, SMALL


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """Address of `minipic serve`, which asks for a key."""
    options = (*OPTIONS, "--api-key", KEY, "--enable-scale-out")
    with minipic_server(str(default_model_dir()), options, SMALL) as server:
        server.wait_ready()
        yield server.url


@pytest.fixture(scope="session")
def stock() -> Iterator[str]:
    """Address of vLLM without the plugin."""
    with stock_server(str(default_model_dir()), OPTIONS, SMALL) as server:
        server.wait_ready()
        yield server.url


@pytest.fixture
def client(served: str) -> Iterator[MiniPIC]:
    """A client that has the key."""
    with MiniPIC(base_url=served, api_key=KEY, max_retries=0) as it:
        yield it


@pytest.fixture(scope="session")
def profile(served: str) -> ModelProfile:
    """The server's own."""
    with MiniPIC(base_url=served, api_key=KEY) as it:
        return it.profile()
