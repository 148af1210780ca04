"""The front end against hostile and careless requests."""

import json

import pytest

from invariants.engines import CONTROL
from invariants.test_bad_requests import GOOD, IDS


def test_refusals_can_be_encoded(engine):
    """A lone surrogate in the fingerprint would come back in the message, and make the 409 a 500."""
    it = engine(fingerprint="today")
    with pytest.raises(ValueError, match="fingerprint") as refused:
        it.ask(GOOD, meta=json.dumps({**json.loads(GOOD.meta()), "fingerprint": "\ud800"}))
    str(refused.value).encode()


def test_a_text_prompt_handed_to_the_engine_as_it_is(engine):
    """LLMEngine.add_request and AsyncLLM.generate take a bare string too."""
    it = engine(skip_tokenizer_init=False)
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, extra_args={"minipic": '{"v":1}'})
    try:
        with pytest.raises(ValueError, match="token ids, not text"):
            it.llm.llm_engine.add_request("raw", "hello", params)
    finally:
        it.llm.llm_engine.abort_request(["raw"])
        while it.llm.llm_engine.has_unfinished_requests():
            it.llm.llm_engine.step()


def test_scored_prompt_rows_are_refused_like_prompt_logprobs(engine):
    """Model runner V2 (GPU): prompt_logprob_token_ids scores physical rows; vLLM itself refuses it on V1 only."""
    it = engine()
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    from minipic_server.validation import check_request

    params = SamplingParams(
        max_tokens=1, extra_args={"minipic": GOOD.meta()}, prompt_logprob_token_ids=[[1]] * (len(IDS) - 1)
    )
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=IDS,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    with pytest.raises(ValueError, match="prompt_logprob"):
        check_request(it.llm.llm_engine.vllm_config, request, {"prompt_token_ids": IDS})


def test_prefilling_for_an_adapter_does_not_take_the_base_models_spans_for_its_own():
    """POST /v1/minipic/spans with model=<adapter>: the look-up knows no LoRA, so it answers `hit` and computes nothing."""
    import asyncio
    from types import SimpleNamespace

    from minipic_sdk.layout import ControlTokens
    from minipic_server.prefill import SpanService
    from minipic_server.routes import SpanIn, SpansIn

    generated, asked = [], []

    async def ask(operation, payload):
        asked.append(payload)
        return [("k" * 32, 1, 0 if s["lora"] else 1, False, None) for s in payload]  # the base model has them all

    async def generate(prompt, params, request_id, lora_request=None):
        generated.append(lora_request)
        yield SimpleNamespace(kv_transfer_params=None)

    adapter = SimpleNamespace(lora_name="adapter", lora_path="/adapter")
    service = object.__new__(SpanService)
    service._vocabulary = 512
    service._engine = SimpleNamespace(generate=generate)
    service._models = SimpleNamespace(is_base_model=lambda m: m == "base", lora_requests={"adapter": adapter})
    service._config = SimpleNamespace(control=ControlTokens(*CONTROL), block_size=16)
    service.profile = SimpleNamespace(fingerprint="f", anchor_token_ids=(1, 2), max_model_len=1024)
    service.ask = ask
    out = asyncio.run(service.prefill(SpansIn(spans=[SpanIn(token_ids=[5, 6, 7])], model="adapter")))
    assert asked[0][0]["lora"] == ("adapter", "/adapter")
    assert generated == [adapter]
    assert out[0]["status"] == "computed"
