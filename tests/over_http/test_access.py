"""Who may ask: vLLM's API key guards our routes too; servers that aren't there, or aren't ours."""

import httpx
import pytest

from minipic_sdk import (
    APIConnectionError,
    AuthenticationError,
    Document,
    MiniPIC,
    NotFoundError,
    Prompt,
    SpansOffWarning,
)
from over_http import LIMIT_S, MODEL, free_address

ROUTES = [
    ("GET", "/v1/minipic/profile"),
    ("POST", "/v1/minipic/spans"),
    ("POST", "/v1/minipic/spans/lookup"),
    ("GET", "/v1/minipic/stats"),
    ("GET", "/v1/minipic/requests/cmpl-1"),
    ("POST", "/v1/completions"),
]
DOCS = [Document("The quokka lives on Rottnest.", name="q"), Document("It eats grass.", name="g")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}], ids=["no-key", "wrong-key"])
def test_every_route_asks_for_the_key(served, method, path, headers) -> None:
    answer = httpx.request(method, served + path, headers=headers, json={}, timeout=LIMIT_S)
    assert answer.status_code == 401


@pytest.mark.parametrize("key", [None, "wrong"])
def test_the_sdk_says_what_is_wrong_with_the_key(served, key) -> None:
    with MiniPIC(base_url=served, api_key=key) as client:
        for call in (lambda: client.warm(DOCS), client.profile, client.stats):
            with pytest.raises(AuthenticationError, match="wrong" if key else "missing"):
                call()


def test_without_a_server(tmp_path) -> None:
    with (
        MiniPIC(base_url=free_address(), max_retries=0) as client,
        pytest.raises(APIConnectionError, match="refused"),
    ):
        client.warm(DOCS)


def test_stock_vllm_gets_the_bare_tokens_and_answers_the_same(served, stock, profile, client) -> None:
    """Degrading, I7: the same program against vLLM without the plugin."""
    prompt = Prompt.compose(DOCS, "Where does the quokka live?", profile=profile)
    plain = Prompt.compose(DOCS, "Where does the quokka live?", profile=profile, layout="prefix")
    with MiniPIC(base_url=stock, model=MODEL, profile=profile) as there:
        with pytest.warns(SpansOffWarning):
            degraded = there.generate(prompt, max_tokens=12, temperature=0)
        assert there.warm(DOCS).count("rejected") == 2
    with MiniPIC(base_url=stock) as bare, pytest.raises(NotFoundError):
        bare.profile()
    assert degraded.token_ids == client.generate(plain, max_tokens=12, temperature=0).token_ids
    assert all("no MiniPIC plugin" in (s.reason or "") for s in degraded.spans)
