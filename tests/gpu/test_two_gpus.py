"""Tensor parallelism: two GPUs give what one gives."""

import pytest
import torch

from gpu.test_engine import DECODE_GRAPHS, rag
from invariants.checks import assert_exact
from invariants.engines import Ask
from invariants.test_i3_exactness import PROMPTS

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("options", [{}, DECODE_GRAPHS], ids=["eager", "graphs"])
def test_two_gpus_answer_as_one(engine, reference, monkeypatch, options):
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # other tests have used CUDA in this process
    one, two, ref = (
        engine("llama3", **options),
        engine("llama3", tensor_parallel_size=2, **options),
        reference("llama3"),
    )
    prompts = [*PROMPTS.values(), *(rag(seed) for seed in range(24))]
    for _ in "cold", "warm":
        asks = [Ask(p, 8) for p in prompts]
        for spec, mine, both in zip(prompts, one.run(*asks), two.run(*asks), strict=True):
            assert mine.tokens == both.tokens
            assert_exact(both, ref, spec)
