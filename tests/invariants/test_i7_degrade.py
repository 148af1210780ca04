"""I7: the same composed prompt works against stock vLLM: the SDK notices and sends the bare tokens."""

import json

import pytest

from invariants.checks import assert_exact
from minipic_sdk import Document, MiniPIC, Prompt
from minipic_sdk.testing import fake_profile
from reference.prompts import Control, PromptSpec, dep, head, span

httpx = pytest.importorskip("httpx")

DOCUMENTS = [Document("The capital of France is Paris."), Document("Rome is the capital of Italy."), Document("")]
QUESTION = "What is the capital of Italy?"


class StockServer:
    """vLLM's HTTP surface, as far as the client uses it, on a real stock engine."""

    def __init__(self, engine):
        self.engine = engine
        self.bodies = []

    def client(self):
        return MiniPIC(http_client=httpx.Client(transport=httpx.MockTransport(self.answer)), max_retries=0)

    def answer(self, request):
        path = request.url.path
        if path == "/v1/models":
            model = {"id": "fake", "object": "model", "owned_by": "vllm", "root": "fake", "max_model_len": 1024}
            return httpx.Response(200, json={"object": "list", "data": [model]})
        if path != "/v1/completions":
            return httpx.Response(404, json={"detail": "Not Found"})
        body = json.loads(request.content)
        self.bodies.append(body)
        ids = body["prompt"][0] if isinstance(body["prompt"][0], list) else body["prompt"]
        result = self.engine.run(ids, tokens=body["max_tokens"])[0]
        text = fake_profile().tokenizer.decode([t for t in result.tokens if t < 256])
        choice = {"index": 0, "text": text, "token_ids": result.tokens, "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(result.tokens), "total_tokens": 0}
        whole = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "fake"}
        return httpx.Response(200, json={**whole, "choices": [choice], "usage": usage})


@pytest.fixture
def prompt():
    return Prompt.compose(DOCUMENTS, QUESTION, profile=fake_profile())


def test_the_answer_is_right_and_nothing_special_is_sent(prompt, stock, reference):
    server = StockServer(stock())
    with pytest.warns(UserWarning), server.client() as client:
        result = client.generate(prompt, max_tokens=8, temperature=0.0)
    (body,) = server.bodies
    assert body["prompt"] == list(prompt.plain_token_ids)
    assert "minipic" not in (body.get("vllm_xargs") or {})
    assert not set(body["prompt"]) & set(fake_profile().control_tokens)
    assert list(result.token_ids) == reference().greedy(PromptSpec((head(*prompt.plain_token_ids),)), 8)


def test_plain_tokens_are_the_visible_ones_in_logical_order(prompt):
    control, visible = set(fake_profile().control_tokens), []
    for piece in prompt.spans:
        visible += [prompt.plain_token_ids[i] for i in piece.logical]
        assert [prompt.plain_token_ids[i] for i in piece.logical] == [prompt.token_ids[i] for i in piece.visible]
    assert visible == list(prompt.plain_token_ids)
    assert [t for t in prompt.token_ids if t not in control] == list(prompt.plain_token_ids)


def test_what_the_sdk_composes_is_exact_on_the_span_engine(prompt, engine, reference):
    """The composed prompt, declared to the reference from its public description only."""
    profile = fake_profile()
    control = Control(*profile.control_tokens)
    it = engine(control_tokens=tuple(control))
    makers = {"head": head, "span": span, "dependent": dep}
    pieces = tuple(makers[s.kind](*(prompt.token_ids[i] for i in s.visible)) for s in prompt.spans)
    spec = PromptSpec(pieces, anchor=len(profile.anchor_token_ids), block=profile.block_size, control=control)
    assert spec.physical() == list(prompt.token_ids)
    assert_exact(it.ask(spec), reference(), spec)
    assert_exact(it.ask(spec), reference(), spec)
