"""Fixtures of the adapters' tests."""

import pytest

from minipic_sdk.testing import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(reply="Five euros.")
