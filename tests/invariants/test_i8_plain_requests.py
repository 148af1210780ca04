"""I8: a request without control tokens gets, to the bit, what stock vLLM gives it; its speed is benchmarked, not tested."""

import pytest
import torch

from invariants.checks import assert_exact
from invariants.engines import Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

PROMPTS = [list(words(n, 300 + n)) for n in (1, 7, 31, 32, 33, 64, 100, 250)]
PROMPTS += [[*PROMPTS[-1][:128], *words(20, 5)], PROMPTS[3]]  # prefix-cache hits
FAMILIES = ["llama", "qwen3", "granite"]
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's code; tests/gpu compares bfloat16 on a GPU")


@on_cpu
@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 40, "max_num_seqs": 6}], ids=["whole", "chunks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bit_for_bit_what_stock_gives(engine, stock, family, options):
    if options and family != "llama":
        pytest.skip("chunking is the scheduler's, whatever the model")
    it, other = engine(family, block_size=32, **options), stock(family, **options)
    for _ in range(2):  # the second time from the cache
        mine, theirs = it.run(*(Ask(ids, 20) for ids in PROMPTS)), other.run(*PROMPTS, tokens=20)
        for a, b in zip(mine, theirs, strict=True):
            assert (a.tokens, a.logprobs, a.cached) == (b.tokens, b.logprobs, b.cached)


@on_cpu
def test_plain_batches_never_reach_our_attention(engine, monkeypatch):
    from minipic_server.plan import StepPlan

    built = []
    original = StepPlan.build.__func__

    def watched(cls, *args, **kwargs):
        built.append(original(cls, *args, **kwargs))
        return built[-1]

    monkeypatch.setattr(StepPlan, "build", classmethod(watched))
    it = engine(block_size=32)
    it.run(*(Ask(ids, 3) for ids in PROMPTS))
    assert not any(built)
    it.ask(PromptSpec((head(1), span(2), dep(3)), block=32), 3)
    assert any(built), "the watch works"


def test_beside_span_requests_plain_ones_stay_exact(engine, reference):
    it = engine(max_num_batched_tokens=40, max_num_seqs=6)
    spec = PromptSpec((head(*words(9, 1)), span(*words(40, 2)), dep(*words(5, 3))), anchor=4)
    asks = [Ask(p, 20) for ids in PROMPTS for p in (ids, spec)]
    for ask, answer in zip(asks, it.run(*asks), strict=True):
        assert_exact(answer, reference(), ask.prompt)
    assert it.met["mixed batch"]
