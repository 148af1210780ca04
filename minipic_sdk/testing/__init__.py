"""Doubles for tests of applications: a server and a profile that need no model, no engine and no network.

    from minipic_sdk import MiniPIC, Prompt
    from minipic_sdk.testing import FakeServer

    server = FakeServer(reply="Paris.")
    client = MiniPIC(http_client=server.http_client())
    prompt = Prompt.compose(["France's capital is Paris."], "Which city?", profile=server.profile)
    assert client.generate(prompt).text == "Paris."
    assert client.generate(prompt).spans[0].status == "hit"

The fake checks what a real server checks (layout, anchor, fingerprint, API key) and remembers which spans it has seen,
so hits and misses are those of a cache that never evicts.
"""

from minipic_sdk.testing.profile import fake_profile
from minipic_sdk.testing.server import FakeServer, Recorded

__all__ = ["FakeServer", "Recorded", "fake_profile"]
