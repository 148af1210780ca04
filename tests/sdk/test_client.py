"""The synchronous client against a server inside the process."""

import json
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from minipic_sdk import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ClientClosedError,
    Document,
    InputError,
    InternalServerError,
    MiniPIC,
    NotFoundError,
    ProfileMismatchError,
    Prompt,
    RateLimitError,
    SpansOffWarning,
)
from minipic_sdk._span_flows import prefetch
from minipic_sdk.testing import FakeServer, fake_profile
from minipic_sdk.wire import SPANS_PATH, SpanQuery

DOCS = ["The quokka lives on Rottnest.", Document("It eats grass.", name="diet")]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(reply="Rottnest.")


@pytest.fixture
def client(server: FakeServer) -> Iterator[MiniPIC]:
    with MiniPIC(http_client=server.http_client()) as client:
        yield client


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds slept, without sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def compose(server: FakeServer, question: str = "Where?", **options: Any) -> Prompt:
    return Prompt.compose(DOCS, question, profile=server.profile, **options)


def paths(server: FakeServer) -> list[str]:
    return [r.path.removeprefix("/v1/") for r in server.requests]


def test_generate(server: FakeServer, client: MiniPIC) -> None:
    prompt = compose(server)
    result = client.generate(prompt, max_tokens=20, temperature=0, stop=["\n"])
    assert result.text == "Rottnest."
    assert result.token_ids == tuple(server.profile.encode("Rottnest."))
    assert result.finish_reason == "stop"
    assert [(s.name, s.status, s.reason) for s in result.spans] == [
        (prompt.spans[1].name, "computed", "first seen"),
        ("diet", "computed", "first seen"),
    ]
    assert result.spans[1].key == prompt.spans[2].key
    assert result.usage.physical_tokens == result.usage.prompt_tokens == len(prompt.token_ids)
    assert result.usage.visible_tokens == len(prompt.plain_token_ids)
    assert (result.usage.cached_tokens, result.usage.completion_tokens) == (0, 9)
    body = server.requests[-1].body
    assert body["prompt"] == prompt.token_ids
    assert body["vllm_xargs"] == prompt.vllm_xargs
    assert (body["max_tokens"], body["temperature"], body["stop"], body["model"]) == (20, 0, ["\n"], "fake")


def test_order_does_not_matter_and_nothing_is_asked_twice(server: FakeServer, client: MiniPIC) -> None:
    client.generate(compose(server))
    again = Prompt.compose(DOCS[::-1], "Why?", profile=server.profile)
    result = client.generate(again)
    assert {s.status for s in result.spans} == {"hit"}
    assert result.usage.cached_tokens == 4 * 16
    assert paths(server) == ["minipic/profile", "completions", "completions"]


def test_sampling_options(server: FakeServer, client: MiniPIC) -> None:
    client.generate(compose(server), n=2, top_k=3, extra_body={"top_a": 1}, top_p=None)
    body = server.requests[-1].body
    assert (body["n"], body["top_k"], body["top_a"], body["max_tokens"]) == (2, 3, 1, 512)
    assert "top_p" not in body
    with pytest.raises(InputError, match="no option 'max_token': did you mean 'max_tokens'"):
        client.generate(compose(server), max_token=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="extra_body"):
        client.generate(compose(server), zzz=3)  # pyright: ignore[reportCallIssue]


def test_a_text_is_no_prompt(server: FakeServer, client: MiniPIC) -> None:
    with pytest.raises(InputError, match="takes a Prompt"):
        client.generate("Where?")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert server.requests == []


def test_a_cut_answer(server: FakeServer, client: MiniPIC) -> None:
    result = client.generate(compose(server), max_tokens=4)
    assert (result.text, result.finish_reason, result.usage.completion_tokens) == ("Rott", "length", 4)


def test_the_callers_xargs_are_kept(server: FakeServer, client: MiniPIC) -> None:
    client.generate(compose(server), extra_body={"vllm_xargs": {"mine": 1}})
    assert server.requests[-1].body["vllm_xargs"].keys() == {"mine", "minipic"}


def test_bodies_are_json(server: FakeServer, client: MiniPIC) -> None:
    client.generate(compose(server), logit_bias={7: -1.0})  # pyright: ignore[reportArgumentType]
    assert server.requests[-1].body["logit_bias"] == {"7": -1.0}
    big: dict[str, Any] = {"bound": 2**70, "nothing": None, "null": "null"}
    client.generate(compose(server), extra_body=big)
    assert server.requests[-1].body.items() >= big.items()
    client.generate(compose(server), temperature=type("Float", (float,), {})(0.5))  # as NumPy's
    assert server.requests[-1].body["temperature"] == 0.5
    for value in ({1, 2}, "\ud800", float("nan"), [float("inf")]):
        with pytest.raises(InputError, match="can't be written as JSON"):
            client.generate(compose(server), extra_body={"x": value})


def test_warm_and_lookup(server: FakeServer, client: MiniPIC) -> None:
    assert client.lookup(DOCS).count("absent") == 2
    report = client.warm(DOCS)
    assert [(s.name, s.status) for s in report.spans][1] == ("diet", "computed")
    assert (report.count("computed"), report.tokens, report.blocks) == (2, 47, 4)
    assert client.warm(DOCS).count("hit") == 2
    assert client.lookup(compose(server)).count("resident") == 2
    assert client.generate(compose(server)).spans[0].status == "hit"
    assert client.warm([]).spans == ()
    assert client.stats()["resident"] == 2


def test_warming_a_prompt_uses_its_own_anchor(server: FakeServer, client: MiniPIC) -> None:
    block = compose(server, layout="block", tools=[{"name": "f"}])
    assert client.warm(block).count("computed") == 3
    assert server.requests[-1].body["anchor_token_ids"] == []
    assert {s.status for s in client.generate(block).spans} == {"hit"}
    assert {s.status for s in client.generate(compose(server)).spans} == {"computed"}


def test_many_documents_go_in_batches(server: FakeServer, client: MiniPIC) -> None:
    report = client.warm([f"document {i}" for i in range(600)])
    assert len(report.spans) == 600
    assert [len(r.body["spans"]) for r in server.requests[1:]] == [256, 256, 88]
    assert client.warm(["same"] * 10_000).count("hit") == 9_999


@pytest.mark.parametrize("given", ["text", Document("x"), {"text": "x"}, [3]])
def test_documents_of_the_wrong_shape(client: MiniPIC, given: Any) -> None:
    for call in (client.warm, client.lookup, client.prefetch):
        with pytest.raises(InputError):
            call(given)


def test_salts(server: FakeServer) -> None:
    with MiniPIC(http_client=server.http_client(), cache_salt="a") as one:
        docs = ["private", Document("shared", public=True)]
        one.warm(docs)
        prompt = Prompt.compose(docs, "Where?", profile=server.profile)
        assert [s.status for s in one.generate(prompt).spans] == ["hit", "hit"]
        assert [s.status for s in one.generate(prompt, cache_salt="b").spans] == ["computed", "hit"]
        assert one.lookup(docs, cache_salt="c").count("resident") == 1


def until_prefetched(client: MiniPIC) -> None:
    """Until all prefetches so far have ended: one thread runs them in order."""
    ended = threading.Event()
    assert client._prefetcher.submit(ended.set)
    assert ended.wait(60)


def test_prefetch_is_deduplicated_and_its_failures_are_dropped(server: FakeServer, client: MiniPIC) -> None:
    def sent() -> int:
        until_prefetched(client)
        return paths(server).count("minipic/spans")

    assert client.prefetch(DOCS)
    assert sent() == 1
    client.prefetch(DOCS)
    client.prefetch([*DOCS, "third"])
    assert sent() == 2
    (third,) = server.requests[-1].body["spans"]
    assert third["name"].startswith("document-")
    assert {s.status for s in client.generate(compose(server)).spans} == {"hit"}
    server.fail_next(500)
    client.prefetch(["fourth"])
    assert sent() == 3
    client.prefetch(["fourth"])  # not remembered as sent
    assert sent() == 4


def test_prefetch_is_bounded(server: FakeServer) -> None:
    gate = threading.Event()

    def handle(request: httpx.Request) -> httpx.Response:
        gate.wait(60)
        return server._handle(request)

    with MiniPIC(http_client=httpx.Client(transport=httpx.MockTransport(handle))) as client:
        accepted = [client.prefetch([str(i)]) for i in range(100)]
        assert accepted[0]
        assert 64 <= sum(accepted) <= 65
        gate.set()


def test_generate_marks_its_spans_as_sent(server: FakeServer, client: MiniPIC) -> None:
    client.generate(compose(server))
    client.prefetch(DOCS)
    until_prefetched(client)
    assert "minipic/spans" not in paths(server)


@pytest.mark.parametrize("failure", [408, 409, 429, 500, 503, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])
def test_retried(server: FakeServer, client: MiniPIC, naps: list[float], failure: int | Exception) -> None:
    client.profile()
    server.fail_next(failure, failure)
    assert client.generate(compose(server)).text == "Rottnest."
    assert 0.375 <= naps[0] <= 0.5
    assert 0.75 <= naps[1] <= 1.0


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (429, RateLimitError),
        (503, InternalServerError),
        (httpx.ConnectError("refused"), APIConnectionError),
        (httpx.ReadTimeout("slow"), APITimeoutError),
        (httpx.RemoteProtocolError("gone"), APIConnectionError),
    ],
)
def test_given_up(
    server: FakeServer, client: MiniPIC, naps: list[float], failure: int | Exception, error: type[APIError]
) -> None:
    client.profile()
    server.fail_next(failure, failure, failure)
    with pytest.raises(error) as caught:
        client.generate(compose(server))
    assert type(caught.value).__name__ == error.__name__
    assert len(naps) == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("status", "error"), [(400, BadRequestError), (404, NotFoundError), (418, APIError)])
def test_not_retried(server: FakeServer, client: MiniPIC, status: int, error: type[APIError]) -> None:
    client.profile()
    server.fail_next(status)
    with pytest.raises(error, match=f"{status}: failure {status} on demand"):
        client.generate(compose(server))


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after-ms": "250"}, 0.25, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.37, 0.5),  # long past
        ({"retry-after": "3600"}, 0.37, 0.5),  # too long to obey
        ({"retry-after": "soon"}, 0.37, 0.5),
    ],
)
def test_retry_after(
    server: FakeServer, client: MiniPIC, naps: list[float], headers: dict[str, str], least: float, most: float
) -> None:
    client.profile()
    server.fail_next(429, headers=headers)
    client.generate(compose(server))
    assert least <= naps[0] <= most


def test_should_retry_header(server: FakeServer, client: MiniPIC, naps: list[float]) -> None:
    client.profile()
    server.fail_next(400, headers={"x-should-retry": "true"})
    client.generate(compose(server))
    assert len(naps) == 1
    server.fail_next(500, headers={"x-should-retry": "false"})
    with pytest.raises(InternalServerError):
        client.generate(compose(server))


def test_the_error_says_what_the_server_said(server: FakeServer, client: MiniPIC) -> None:
    wrong = compose(server)
    wrong.token_ids[20] = server.profile.control_tokens.ssep
    with pytest.raises(BadRequestError, match="token 20: SSEP inside a block") as caught:
        client.generate(wrong)
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (400, 400, "fake")


def test_api_keys(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = FakeServer(api_key="secret")
    with MiniPIC(http_client=guarded.http_client(), api_key="wrong") as client, pytest.raises(AuthenticationError):
        client.profile()
    monkeypatch.setenv("MINIPIC_API_KEY", "secret")
    monkeypatch.setenv("MINIPIC_BASE_URL", "http://example.test:9/v1/")
    with MiniPIC(http_client=guarded.http_client()) as client:
        assert client.base_url == "http://example.test:9"
        assert client.profile() == guarded.profile


def test_settings(server: FakeServer) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return server._handle(request)

    http = httpx.Client(transport=httpx.MockTransport(handle))
    with MiniPIC(http_client=http, base_url="http://a.test/v1", default_headers={"x-team": "z"}, timeout=9) as client:
        client.generate(compose(server), timeout=3)
    assert str(seen[-1].url) == "http://a.test/v1/completions"
    assert seen[-1].headers["x-team"] == "z"
    assert seen[-1].headers["user-agent"].startswith("minipic-sdk/")
    assert seen[0].extensions["timeout"] == {"connect": 5.0, "read": 9, "write": 9, "pool": 9}
    assert seen[-1].extensions["timeout"]["read"] == 3
    assert not http.is_closed
    with pytest.raises(InputError, match="base_url"):
        MiniPIC(base_url="localhost:8000")
    with pytest.raises(InputError, match="base_url 'http://a:b' is no URL: Invalid port"):
        MiniPIC(base_url="http://a:b")
    with pytest.raises(InputError, match="max_retries"):
        MiniPIC(max_retries=-1)


def test_a_stale_prompt(server: FakeServer, client: MiniPIC) -> None:
    prompt = compose(server)
    client.generate(prompt)
    server.profile = fake_profile(32)
    with pytest.raises(ProfileMismatchError, match="stale profile") as caught:
        client.generate(prompt)
    assert caught.value.changed == ("the block size changed from 16 to 32",)
    assert client.profile() == fake_profile(32)
    assert client.generate(compose(server)).text == "Rottnest."
    with pytest.raises(ProfileMismatchError) as caught:
        client.warm(prompt)
    assert caught.value.changed == ("the block size changed from 16 to 32",)


def test_what_the_client_composed_itself_is_composed_anew(server: FakeServer, client: MiniPIC) -> None:
    client.warm(DOCS)
    server.profile = fake_profile(32)
    assert client.warm(DOCS).count("computed") == 2
    server.profile = replace(server.profile, plugin_version="9")
    messages = [{"role": "user", "content": "Where?"}]
    assert client.chat(messages, documents=DOCS).content == "Rottnest."


def test_streaming(server: FakeServer, client: MiniPIC) -> None:
    prompt = compose(server)
    with client.generate(prompt, stream=True) as stream:
        chunks = list(stream)
        result = stream.result()
    assert "".join(c.text for c in chunks) == stream.text == result.text == "Rottnest."
    assert chunks[-1].finish_reason == result.finish_reason == "stop"
    assert result.token_ids == tuple(server.profile.encode("Rottnest."))
    assert [s.status for s in result.spans] == ["computed", "computed"]
    assert result.usage.completion_tokens == 9
    assert stream.result() is result
    assert server.requests[-2].body["stream_options"] == {"include_usage": True}
    assert paths(server)[-1].startswith("minipic/requests/cmpl-fake-")


def test_a_stream_that_was_left_early_has_no_result(server: FakeServer, client: MiniPIC) -> None:
    with client.generate(compose(server), stream=True) as stream:
        next(stream)
    with pytest.raises(InputError, match="closed before its end"):
        stream.result()


def test_a_streams_result_reads_the_rest(server: FakeServer, client: MiniPIC) -> None:
    stream = client.generate(compose(server), stream=True)
    assert next(stream).text == "R"
    assert stream.result().text == "Rottnest."


def test_a_forgotten_streams_spans(server: FakeServer, client: MiniPIC) -> None:
    stream = client.generate(compose(server), stream=True)
    list(stream)
    server._statuses.clear()
    assert {s.reason for s in stream.result().spans} == {"the server did not report it"}


def test_closing_a_stream_closes_the_connection(server: FakeServer, client: MiniPIC) -> None:
    with client.generate(compose(server), stream=True) as stream:
        next(stream)
        response = stream._opened.response
        assert not response.is_closed
    assert response.is_closed


def test_a_stream_that_breaks_off(server: FakeServer, client: MiniPIC) -> None:
    server.cut_streams(3)
    stream = client.generate(compose(server), stream=True)
    with pytest.raises(APIConnectionError, match="broke off"):
        list(stream)
    assert stream.text == "Rot"


def test_errors_inside_and_before_a_stream(server: FakeServer, client: MiniPIC, naps: list[float]) -> None:
    client.profile()
    server.fail_next(500)
    assert client.generate(compose(server), stream=True).result().text == "Rottnest."
    server.fail_next(400)
    with pytest.raises(BadRequestError, match="failure 400 on demand"):
        client.generate(compose(server), stream=True)
    assert len(naps) == 1
    broken = b'data: {"error": {"message": "engine died", "code": 500}}\n\n'
    for content, error, said in (
        (broken, APIError, "engine died"),
        (b"data: {nonsense\n\n", APIResponseValidationError, "can't be read"),
    ):
        raw = httpx.Client(transport=httpx.MockTransport(_only_completions(server, content)))
        with MiniPIC(http_client=raw) as other, pytest.raises(error, match=said):
            other.generate(compose(server), stream=True).result()


def _only_completions(server: FakeServer, content: bytes) -> Any:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/completions":
            return httpx.Response(200, content=content)
        return server._handle(request)

    return handle


@pytest.mark.parametrize(
    "content", [b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": 3}']
)
def test_answers_that_make_no_sense(server: FakeServer, content: bytes) -> None:
    raw = httpx.Client(transport=httpx.MockTransport(_only_completions(server, content)))
    with MiniPIC(http_client=raw) as client, pytest.raises(APIResponseValidationError):
        client.generate(compose(server))


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_without_the_plugin(kind: Any) -> None:
    server = FakeServer(reply="Rottnest.", kind=kind)
    prompt = compose(server)
    with MiniPIC(http_client=server.http_client()) as client:
        with pytest.warns(SpansOffWarning, match="no MiniPIC plugin") as caught:
            result = client.generate(prompt)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            assert client.generate(prompt, stream=True).result().text == "Rottnest."
            report = client.warm(DOCS)
            client.prefetch(DOCS)
        with pytest.raises(NotFoundError):
            client.profile()
    assert result.text == "Rottnest."
    assert {s.reason for s in result.spans} == {"spans are off: the server has no MiniPIC plugin"}
    assert report.count("rejected") == 2
    body = next(r.body for r in server.requests if r.path.endswith("completions"))
    assert "vllm_xargs" not in body
    if kind == "vllm":
        assert body["prompt"] == prompt.plain_token_ids
        assert result.usage.physical_tokens == result.usage.visible_tokens == len(prompt.plain_token_ids)
    else:
        assert body["messages"] == prompt.messages
        assert "return_token_ids" not in body


@pytest.mark.filterwarnings("ignore::minipic_sdk.SpansOffWarning")
def test_a_stock_server_of_another_model_renders_the_messages_itself() -> None:
    server = FakeServer(kind="vllm", profile=replace(fake_profile(), model="theirs"))
    prompt = Prompt.compose(
        DOCS, "Where?", system="s", tools=[{"name": "f"}], profile=fake_profile(), template_options={"x": 1}
    )
    with MiniPIC(http_client=server.http_client()) as client:
        assert client.generate(prompt).text == "ok"
    body = server.requests[-1].body
    assert server.requests[-1].path == "/v1/chat/completions"
    assert (body["model"], body["chat_template_kwargs"]) == ("theirs", {"x": 1})
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "The quokka lives on Rottnest.\n\nIt eats grass.\n\nWhere?"
    assert body["tools"] == prompt.tools


@pytest.mark.filterwarnings("ignore::minipic_sdk.SpansOffWarning")
def test_compose_alone_against_a_stock_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(kind="openai")
    monkeypatch.setenv("MINIPIC_BASE_URL", "http://stock.test")
    clients = [server.http_client(), server.http_client()]
    monkeypatch.setattr(httpx, "Client", clients.pop)
    prompt = Prompt.compose(DOCS, "Where?")
    with MiniPIC() as client:
        assert client.generate(prompt).text == "ok"
    assert server.requests[-1].path == "/v1/chat/completions"


def test_a_server_that_keeps_token_ids_to_itself(server: FakeServer) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if b"return_token_ids" in request.content:
            error = {"message": "return_token_ids is not available for span requests", "code": 400}
            return httpx.Response(400, json={"error": error})
        response = server._handle(request)
        body = json.loads(response.content)
        for choice in body.get("choices", ()):
            del choice["token_ids"]
        return httpx.Response(response.status_code, json=body)

    with MiniPIC(http_client=httpx.Client(transport=httpx.MockTransport(handle))) as client:
        result = client.generate(compose(server))
        assert (result.text, result.token_ids) == ("Rottnest.", ())
        count = len(server.requests)
        client.generate(compose(server))
        assert len(server.requests) == count + 1  # remembered


def test_pinning_and_unpinning() -> None:
    server = FakeServer(blocks=16)
    with MiniPIC(http_client=server.http_client()) as client:
        pinned = client.warm(DOCS[1:], ttl=60)
        assert [(s.status, s.pinned, s.expires_in) for s in pinned.spans] == [("computed", True, 60)]
        assert [(s.pinned, s.expires_in) for s in client.warm(DOCS[1:], pin=True).spans] == [(True, None)]
        too_much = client.warm(["Far more words than there is room for. " * 5], pin=True).spans[0]
        assert (too_much.status, too_much.pinned) == ("rejected", False)
        assert "pinned spans may take 8 KV blocks" in (too_much.reason or "")
        assert client.stats()["pinned_spans"] == 1
        assert [(s.status, s.pinned) for s in client.unpin(DOCS[1:]).spans] == [("resident", False)]
        assert [s.pinned for s in client.lookup(DOCS).spans] == [False, False]


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
def test_a_ttl_must_be_a_time(server: FakeServer, ttl: float) -> None:
    with MiniPIC(http_client=server.http_client()) as client, pytest.raises(InputError, match="ttl"):
        client.warm(DOCS, ttl=ttl)
    assert server.requests == []


def test_spans_by_their_tokens(server: FakeServer) -> None:
    ids = server.profile.encode("By tokens.\n\n")
    with MiniPIC(http_client=server.http_client()) as client:
        assert client.warm([SpanQuery(ids, name="mine"), "By tokens."]).count("hit") == 1
        server.profile = fake_profile(32)
        with pytest.raises(ProfileMismatchError):  # they can't be tokenised anew
            client.warm([SpanQuery(ids)])


def test_a_closed_client_says_so(server: FakeServer) -> None:
    http = server.http_client()
    client = MiniPIC(http_client=http)
    stream = client.generate(compose(server), stream=True)
    whole = "".join(chunk.text for chunk in stream)
    client.close()
    assert stream.result().text == whole == "Rottnest."
    for use in (
        client.stats,
        lambda: client.warm(DOCS),
        lambda: client.prefetch(DOCS),
        lambda: client.generate(compose(server)),
        lambda: client.chat([{"role": "user", "content": "Where?"}], stream=True),
    ):
        with pytest.raises(ClientClosedError, match="the client is closed: make a new client"):
            use()
    http.close()
    with pytest.raises(RuntimeError, match="the http_client of this client is closed"):
        MiniPIC(http_client=http).profile()


def test_what_was_generated_outlives_its_client(server: FakeServer) -> None:
    client = MiniPIC(http_client=server.http_client())
    stream = client.chat([{"role": "user", "content": "Where?"}], documents=DOCS, stream=True)
    for _ in stream:
        pass
    client.close()
    assert stream.result().content == "Rottnest."


def test_a_prefetch_that_can_t_be_written_is_not_taken_for_sent(server: FakeServer) -> None:
    with MiniPIC(http_client=server.http_client()) as client:
        session = client._session  # pyright: ignore[reportPrivateUsage]
        client._run(prefetch(session, [Document(DOCS[0], name="\ud800")], None))  # pyright: ignore[reportPrivateUsage]
        client._run(prefetch(session, [Document(DOCS[0], name="fine")], None))  # pyright: ignore[reportPrivateUsage]
    assert [r.path for r in server.requests].count(SPANS_PATH) == 1


def test_headers_of_ones_own_win(server: FakeServer) -> None:
    seen: list[httpx.Request] = []
    own = server.http_client()

    def noted(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return own.send(request)

    http = httpx.Client(transport=httpx.MockTransport(noted))
    with MiniPIC(http_client=http, default_headers={"content-type": "application/json; charset=utf-8"}) as client:
        client.generate(compose(server))
    assert seen[-1].headers.get_list("content-type") == ["application/json; charset=utf-8"]


def test_a_closed_client_with_connections_of_its_own() -> None:
    with MiniPIC(base_url="http://127.0.0.1:9") as client:
        pass
    with pytest.raises(ClientClosedError):
        client.profile()


def test_an_empty_document_is_rejected_and_the_others_are_warmed(client: MiniPIC) -> None:
    report = client.warm(["", "The quokka.", Document(" \n", name="blank")])
    assert [(s.status, s.reason) for s in report.spans] == [
        ("rejected", "it has no tokens"),
        ("computed", "first seen"),
        ("rejected", "it has no tokens"),
    ]
