"""Fixtures of the adapters' tests."""

import time
from collections.abc import Callable

import pytest

from minipic_sdk.testing import FakeServer
from minipic_sdk.wire import SPANS_PATH


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(reply="Five euros.")


@pytest.fixture
def until_prefetched(server: FakeServer) -> Callable[[], None]:
    def wait() -> None:
        for _ in range(200):
            if any(r.path == SPANS_PATH for r in server.requests):
                return
            time.sleep(0.01)
        raise AssertionError("nothing was prefetched")

    return wait
