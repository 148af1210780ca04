"""I6: control ids mean something only in a request that asks for it, and only in its original prompt."""

import pytest

from invariants.checks import assert_exact, assert_same, plain
from invariants.engines import CONTROL, Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, QUESTION = words(21, 1), words(9, 2)
A, B = words(40, 61), words(15, 62)
SPEC = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION)), anchor=4)
SSEP, PDEP, PAD = CONTROL
PLAIN = {
    "a-span-prompt-without-opting-in": SPEC.physical(),
    "ssep-inside-a-block": [*HEAD, SSEP, *A],
    "ssep-first": [SSEP, *A],
    "pad-in-the-middle": [*HEAD, PAD, PAD, *A],
    "nothing-but-control-ids": [SSEP] * 20 + [PDEP] * 20 + [PAD] * 20,
}


@pytest.mark.parametrize("name", PLAIN)
def test_in_any_other_request_they_are_ordinary_tokens(engine, stock, reference, name):
    it, ids = engine(), PLAIN[name]
    answer = it.ask(ids, 8)
    assert_same(answer, stock().run(ids, tokens=8)[0])
    assert_exact(answer, reference(), ids)


def test_plain_and_span_requests_never_share_a_block_of_spans(engine, reference):
    """The same physical tokens under both sets of rules, in both orders and in one batch."""
    it, ids = engine(), SPEC.physical()
    it.ask(SPEC)
    answer = it.ask(ids)
    assert answer.cached == 16, "the head's first block is the same under both rules, its padded one isn't"
    assert_exact(answer, reference(), ids)
    it.reset()
    it.ask(ids)
    answer = it.ask(SPEC)
    assert answer.cached == 16
    assert_exact(answer, reference(), SPEC)
    it.reset()
    for answer, prompt in zip(it.run(Ask(ids), Ask(SPEC), Ask(ids)), (ids, SPEC, ids), strict=True):
        assert_exact(answer, reference(), prompt)


def test_a_long_system_prompt_is_cached_once_for_all(engine, reference):
    it, system = engine(), words(64, 3)
    spec = PromptSpec((head(*system), span(*A), dep(*QUESTION)), anchor=4)
    it.ask(spec)
    bare = [*system, *words(5, 4)]
    answer = it.ask(bare)
    assert answer.cached == 64
    assert_exact(answer, reference(), bare)
    it.reset()
    it.ask(bare)
    answer = it.ask(spec)
    assert answer.cached == 64
    assert_exact(answer, reference(), spec)


@pytest.mark.parametrize("control", CONTROL, ids=["ssep", "pdep", "pad"])
def test_a_span_request_never_samples_a_control_id(engine, control):
    it = engine()
    for params in ({}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "top_k": 2, "seed": 4}):
        answer = it.ask(SPEC, 12, params={**params, "logit_bias": {control: 100.0}})
        assert not set(answer.tokens) & set(CONTROL)
    assert set(it.ask([*HEAD], 4, params={"logit_bias": {control: 100.0}}).tokens) == {control}


def test_only_control_ids_allowed_leaves_the_engine_unharmed(engine, reference):
    """Nothing can be sampled then: refused, or any visible token; never a control token, never a dead engine."""
    it = engine()
    for temperature in (0.0, 1.0):
        try:
            answer = it.ask(SPEC, 3, params={"allowed_token_ids": list(CONTROL), "temperature": temperature})
        except ValueError:
            continue
        assert not set(answer.tokens) & set(CONTROL)
    assert_exact(it.ask(SPEC), reference(), SPEC)


def test_sampled_control_ids_of_a_plain_request_publish_nothing(engine, reference):
    """A plain request generates SSEP on a block boundary and a span's text behind it: no span may be hit by it."""
    it = engine()
    for count in (16, 32):
        ids = list(words(count, 5))
        forced = it.ask(ids, 1, params={"logit_bias": {SSEP: 100.0}}).tokens
        assert forced == [SSEP]
        text = it.ask([*ids, SSEP], 31, params={"logit_bias": {SSEP: 100.0}}).tokens
        document = words(15, 6 + count)
        it.ask([*ids, SSEP, *document], 20)
        spec = PromptSpec((span(*document), dep(*QUESTION)))
        answer = it.ask(spec)
        assert (answer.cached, text[0]) == (0, SSEP)
        assert_exact(answer, reference(), spec)


def test_plain_requests_that_generate_control_ids_survive_preemption(engine, reference):
    """vLLM resubmits prompt and output as a prompt: a sampled SSEP at a block boundary is still an ordinary token."""
    it = engine(num_gpu_blocks_override=15, max_model_len=208, max_num_seqs=8)
    bias = {SSEP: 100.0}
    asks = [Ask(list(words(30, 70 + i)), 60, params={"logit_bias": bias}) for i in range(6)]
    answers = it.run(*asks)
    assert it.met["preemption"]
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.tokens == [SSEP] * 60
        rows = reference().logprobs(plain(ask.prompt), answer.tokens[:-1])
        for row, logprobs in zip(rows, answer.logprobs, strict=True):
            assert max(abs(p - float(row[t])) for t, p in logprobs.items()) < 1e-3


def test_span_requests_survive_preemption(engine, reference):
    it = engine(num_gpu_blocks_override=23, max_model_len=320, max_num_seqs=8)
    specs = [
        PromptSpec((head(*HEAD), span(*A), span(*words(15, 80 + i)), dep(*words(9, 90 + i))), anchor=4)
        for i in range(5)
    ]
    answers = it.run(*(Ask(spec, 60) for spec in specs))
    assert it.met["preemption"]
    for answer, spec in zip(answers, specs, strict=True):
        assert_exact(answer, reference(), spec)


@pytest.mark.parametrize("tokens", [5, 40], ids=["short", "over-a-block"])
def test_several_sequences_of_one_request(engine, reference, tokens):
    it = engine()
    it.warm(PromptSpec((head(*HEAD[:4]), span(*B)), anchor=4))  # so that the request is rearranged
    answer = it.ask(SPEC, tokens, params={"n": 4, "temperature": 1.0, "seed": 7})
    assert len(answer.outputs) == 4
    assert len({tuple(o.token_ids) for o in answer.outputs}) > 1
    for out in answer.outputs:
        assert not set(out.token_ids) & set(CONTROL)
        rows = reference().logprobs(SPEC, list(out.token_ids)[:-1])
        for row, entries in zip(rows, out.logprobs, strict=True):
            assert max(abs(e.logprob - float(row[t])) for t, e in entries.items()) < 1e-3


def test_sequences_under_preemption(engine, reference):
    it = engine(num_gpu_blocks_override=23, max_model_len=320, max_num_seqs=8)
    answer = it.ask(SPEC, 70, params={"n": 6, "temperature": 1.0, "seed": 7})
    assert it.met["preemption"]
    for out in answer.outputs:
        rows = reference().logprobs(SPEC, list(out.token_ids)[:-1])
        for row, entries in zip(rows, out.logprobs, strict=True):
            assert max(abs(e.logprob - float(row[t])) for t, e in entries.items()) < 1e-3


def test_text_is_never_parsed_for_control_tokens(engine):
    """A span request takes token ids: a text prompt could spell a control token."""
    it = engine(skip_tokenizer_init=False)
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, extra_args={"minipic": '{"v":1}'})
    with pytest.raises(ValueError, match="token ids, not text"):
        it.llm.generate("hello <|ssep|>", params, use_tqdm=False)


def test_opting_in_without_control_tokens_is_a_plain_request(engine, stock):
    it, ids = engine(), [*HEAD, *QUESTION]
    answer = it.ask(ids, 8, meta='{"v":1}')
    assert_same(answer, stock().run(ids, tokens=8)[0])
    assert it.ask(ids, 8).cached == 16
