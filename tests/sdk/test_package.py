"""The package as a whole: its names, its weight, its errors beside openai's."""

import re
import subprocess
import sys
from typing import Any

import httpx
import pytest

import minipic_sdk
from minipic_sdk import MiniPIC, errors
from minipic_sdk._sse import EventDecoder
from minipic_sdk.errors import InputError
from minipic_sdk.testing import FakeServer
from minipic_sdk.wire import SpanQuery, SpansRequest, SpanStatus, parse_statuses

PUBLIC = {
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AsyncMiniPIC",
    "AsyncStream",
    "AuthenticationError",
    "BadRequestError",
    "ChatResult",
    "Choice",
    "Chunk",
    "ClientClosedError",
    "ConflictError",
    "ControlTokens",
    "Document",
    "GenerateResult",
    "InputError",
    "InternalServerError",
    "LayoutError",
    "MiniPIC",
    "MiniPICError",
    "ModelProfile",
    "NotFoundError",
    "PermissionDeniedError",
    "ProfileError",
    "ProfileMismatchError",
    "Prompt",
    "PromptSpan",
    "PromptStats",
    "RateLimitError",
    "SamplingOptions",
    "SpanResult",
    "SpanStatus",
    "SpansOffWarning",
    "SpansReport",
    "Stream",
    "TemplateError",
    "Tool",
    "ToolCall",
    "UnprocessableEntityError",
    "Usage",
    "__version__",
}


def test_names() -> None:
    assert sorted(minipic_sdk.__all__) == minipic_sdk.__all__
    assert set(minipic_sdk.__all__) >= PUBLIC
    for name in minipic_sdk.__all__:
        assert getattr(minipic_sdk, name) is not None
    assert dir(minipic_sdk) == minipic_sdk.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        minipic_sdk.Nonsense  # noqa: B018  # pyright: ignore


def test_everything_public_is_documented() -> None:
    for name in minipic_sdk.__all__:
        value = getattr(minipic_sdk, name)
        if isinstance(value, type):
            assert value.__doc__
            public = [m for m in vars(value) if not m.startswith("_") and callable(getattr(value, m))]
            assert not [m for m in public if not getattr(value, m).__doc__], name


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, minipic_sdk; print(*sorted(m.split('.')[0] for m in sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {
        "torch",
        "vllm",
        "transformers",
        "langchain_core",
        "openai",
        "httpx",
        "jinja2",
        "tokenizers",
        "pydantic",
    }


def test_composing_loads_no_http_and_no_model_libraries() -> None:
    code = (
        "import sys, minipic_sdk as m; m.Prompt.compose(['a'], 'b', profile=m.ModelProfile.default());"
        "print(*sorted(x.split('.')[0] for x in sys.modules))"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"torch", "vllm", "transformers", "httpx", "openai", "tiktoken"}


def test_the_docstring_draws_every_error() -> None:
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and v.__module__ == errors.__name__]
    assert len(kinds) > 15
    for kind in kinds:
        assert re.search(rf"\b{kind.__name__}\b", str(errors.__doc__))
        assert issubclass(kind, errors.MiniPICError | Warning)


@pytest.mark.parametrize(
    ("failure", "theirs"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (409, "ConflictError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (418, "APIStatusError"),
        (httpx.ConnectError("x"), "APIConnectionError"),
        (httpx.ReadTimeout("x"), "APITimeoutError"),
    ],
)
def test_except_openai_errors(failure: Any, theirs: str) -> None:
    openai = pytest.importorskip("openai")
    server = FakeServer()
    server.fail_next(failure)
    with MiniPIC(http_client=server.http_client(), max_retries=0) as client, pytest.raises(openai.APIError) as caught:
        client.profile()
    assert isinstance(caught.value, getattr(openai, theirs))
    assert isinstance(caught.value, getattr(minipic_sdk, theirs))
    assert str(caught.value)
    assert caught.value.message == str(caught.value)


def test_wire_round_trip() -> None:
    asked = SpansRequest([SpanQuery([1, 2], name="n", public=True), SpanQuery(text="t")], [1], "salt", "fp", "lora")
    assert SpansRequest.from_json(asked.to_json()) == asked
    assert SpansRequest([SpanQuery([1])]).to_json() == {"spans": [{"token_ids": [1]}]}
    status = SpanStatus("n", "partial", None, 20, 2, "ab", 1)
    assert parse_statuses({"spans": [status.to_json()]}) == (status,)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "must be a JSON object"),
        ({}, "spans must be a list"),
        ({"spans": [{}]}, r"spans\[0\]: give either"),
        ({"spans": [{"text": "a", "token_ids": [1]}]}, "give either"),
        ({"spans": [{"text": 3}]}, "text must be a string"),
        ({"spans": [{"token_ids": [True]}]}, "list of token ids"),
        ({"spans": [{"token_ids": [-1]}]}, "list of token ids"),
        ({"spans": [{"text": "a", "public": 1}]}, "true or false"),
        ({"spans": [], "salt": "x"}, "unknown field 'salt'"),
        ({"spans": [{"text": "x"}] * 4097}, "at most 4096"),
    ],
)
def test_wire_errors(body: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        SpansRequest.from_json(body)


def test_wire_answers() -> None:
    with pytest.raises(InputError, match="no list of spans"):
        parse_statuses({})
    with pytest.raises(InputError, match="unknown span status"):
        parse_statuses({"spans": [{"status": "warm"}]})


def test_events_in_any_pieces() -> None:
    stream = 'data: {"a": "\u2028é"}\n\n: comment\ndata: one\r\ndata: two\r\n\r\n\ndata:[DONE]\n\n'.encode()
    for size in (1, 2, 3, 7, len(stream)):
        decoder = EventDecoder()
        events = [e for i in range(0, len(stream), size) for e in decoder.feed(stream[i : i + size])]
        assert events == ['{"a": "\u2028é"}', "one\ntwo", "[DONE]"]
