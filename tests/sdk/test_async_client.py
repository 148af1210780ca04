"""The asynchronous client: the same flows, awaited."""

import asyncio
from typing import Any

import httpx
import pytest

from minipic_sdk import (
    APIConnectionError,
    AsyncMiniPIC,
    ClientClosedError,
    Document,
    InputError,
    InternalServerError,
    ProfileMismatchError,
    Prompt,
    RateLimitError,
    SpansOffWarning,
)
from minipic_sdk.testing import FakeServer, fake_profile

DOCS = ["The quokka lives on Rottnest.", Document("It eats grass.", name="diet")]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(reply="Rottnest.")


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *args: Any) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


def compose(server: FakeServer) -> Prompt:
    return Prompt.compose(DOCS, "Where?", profile=server.profile)


async def test_everything_once(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        assert await client.profile() == server.profile
        assert (await client.warm(DOCS)).count("computed") == 2
        assert (await client.lookup(DOCS)).count("resident") == 2
        result = await client.generate(compose(server), max_tokens=20)
        assert (result.text, {s.status for s in result.spans}) == ("Rottnest.", {"hit"})
        assert (await client.stats())["resident"] == 2
        messages = [{"role": "user", "content": "Where?"}]
        assert (await client.chat(messages, documents=DOCS)).content == "Rottnest."
        chat = await client.chat(messages, documents=DOCS, stream=True)
        assert (await chat.result()).message == {"role": "assistant", "content": "Rottnest."}


async def test_streaming(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        async with await client.generate(compose(server), stream=True) as stream:
            assert (await stream.__anext__()).text == "R"
            rest = [chunk.text async for chunk in stream]
            result = await stream.result()
        assert "R" + "".join(rest) == stream.text == result.text == "Rottnest."
        assert len(result.spans) == 2
        assert await stream.result() is result
        server.cut_streams(3)
        stream = await client.generate(compose(server), stream=True)
        with pytest.raises(APIConnectionError, match="broke off"):
            await stream.result()


async def test_closing_a_stream_early(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        async with await client.generate(compose(server), stream=True) as stream:
            async for _ in stream:
                break
        assert stream._opened.response.is_closed
        with pytest.raises(InputError, match="closed before its end"):
            await stream.result()


async def test_retries(server: FakeServer, naps: list[float]) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        server.fail_next(503, httpx.ConnectError("refused"))
        assert (await client.generate(compose(server))).text == "Rottnest."
        assert len([n for n in naps if n]) == 2
        server.fail_next(429, 429, 429)
        with pytest.raises(RateLimitError):
            await client.generate(compose(server))
        server.fail_next(500, 500, 500)
        with pytest.raises(InternalServerError):
            await client.generate(compose(server), stream=True)


async def test_a_stale_prompt(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        prompt = compose(server)
        server.profile = fake_profile(32)
        with pytest.raises(ProfileMismatchError) as caught:
            await client.generate(prompt)
        assert caught.value.changed == ("the block size changed from 16 to 32",)


async def test_prefetch(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        assert client.prefetch(DOCS)
        client.prefetch(["more"])
        for _ in range(100):
            await asyncio.sleep(0.005)
            if len(server.requests) >= 4:
                break
        assert (await client.lookup([*DOCS, "more"])).count("resident") == 3
        accepted = [client.prefetch([str(i)]) for i in range(80)]
        assert sum(accepted) == 64
    assert asyncio.all_tasks() == {asyncio.current_task()}  # closing waits for what it cancels


async def test_without_the_plugin() -> None:
    server = FakeServer(kind="vllm")
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        with pytest.warns(SpansOffWarning) as caught:
            assert (await client.generate(compose(server))).text == "ok"
        assert caught[0].filename == __file__


async def test_many_requests_at_once(server: FakeServer) -> None:
    async with AsyncMiniPIC(http_client=server.async_http_client()) as client:
        await client.profile()
        results = await asyncio.gather(*(client.generate(compose(server)) for _ in range(20)))
    assert {r.text for r in results} == {"Rottnest."}


async def test_a_closed_client_says_so(server: FakeServer) -> None:
    client = AsyncMiniPIC(http_client=server.async_http_client())
    await client.close()
    for use in (client.stats, lambda: client.warm(DOCS), lambda: client.generate(compose(server))):
        with pytest.raises(ClientClosedError, match="the client is closed: make a new client"):
            await use()
    with pytest.raises(ClientClosedError):
        client.prefetch(DOCS)
    owned = AsyncMiniPIC(base_url="http://127.0.0.1:9")
    await owned.close()
    with pytest.raises(ClientClosedError):
        await owned.profile()
