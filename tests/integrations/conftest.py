"""Fixtures of the adapters' tests."""

import threading
from collections.abc import Callable

import httpx
import pytest

from minipic_sdk.testing import FakeServer
from minipic_sdk.wire import SPANS_PATH

LIMIT_S = 60.0


class Server(FakeServer):
    """Tells when it has answered a prefetch: ``requests`` has it earlier, when its spans are not cached yet."""

    def __init__(self) -> None:
        super().__init__(reply="Five euros.")
        self.prefetched = threading.Event()

    def _handle(self, request: httpx.Request) -> httpx.Response:
        response = super()._handle(request)
        if request.url.path == SPANS_PATH:
            self.prefetched.set()
        return response


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def until_prefetched(server: Server) -> Callable[[], None]:
    def wait() -> None:
        assert server.prefetched.wait(LIMIT_S), "nothing was prefetched"

    return wait
