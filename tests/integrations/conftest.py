"""Fixtures; those of langchain-tests stand in for four pytest plugins that it would need for three tests."""

import pytest

from minipic_sdk.testing import FakeServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vcr: of langchain-tests; we record nothing")
    config.addinivalue_line("markers", "benchmark: of langchain-tests")


@pytest.fixture
def vcr() -> None:
    """For the one test that replays recordings, which skips itself."""


@pytest.fixture
def snapshot() -> None:
    """For the one test of serialisable models: LangChain reads back only those on its own list."""


@pytest.fixture
def benchmark():
    """In place of pytest-benchmark: runs it once."""
    return lambda function, *args, **kwargs: function(*args, **kwargs)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(reply="Five euros.")
