"""vLLM's own offload of KV to host memory: what comes back serves any offset, since nothing in it is a position."""

import random

import pytest

from gpu.test_engine import DOCUMENTS, HEAD, rag
from invariants.checks import assert_exact
from invariants.engines import Ask, Engine
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

OPTIONS = {"num_gpu_blocks_override": 70, "max_num_seqs": 16, "kv_offloading_size": 1}


@pytest.fixture(scope="module")
def offloading(checkpoint):
    """An engine of this file alone: vLLM keeps one KV connector a process, which later engines would find."""
    it = Engine(checkpoint("llama3"), **OPTIONS)
    yield it
    it.close()


def push_out(it):
    """Fill the GPU's blocks with other things."""
    for seed in range(8):
        it.ask(list(words(900, 500 + seed)), 8)


def test_a_span_evicted_to_the_host_serves_a_prompt_at_another_offset(offloading, reference):
    it, ref = offloading, reference("llama3")
    it.poison()
    first = PromptSpec((head(*HEAD), *(span(*d) for d in DOCUMENTS[8:11]), dep(*words(9, 1))), anchor=4)
    assert_exact(it.ask(first, 4), ref, first)
    push_out(it)
    new = span(*words(33, 77))
    again = PromptSpec((head(*HEAD), span(*DOCUMENTS[10]), new, span(*DOCUMENTS[8]), dep(*words(5, 2))), anchor=4)
    answer = it.ask(again, 4)
    assert_exact(answer, ref, again)
    assert {(s["status"], s["reason"]) for s in answer.spans if s["reason"] != "first seen"} == {
        ("hit", "loaded from host memory")
    }
    assert answer.cached >= 16 * sum(s["blocks"] for s in answer.spans if s["status"] == "hit")


def test_offload_with_preemption_and_new_arrangements(offloading, reference):
    it, ref = offloading, reference("llama3")
    for seed in range(4):
        prompts = [rag(50 * seed + i, random.Random(seed + i).randint(1, 4)) for i in range(12)]
        for answer, spec in zip(it.run(*(Ask(p, 60) for p in prompts)), prompts, strict=True):
            assert_exact(answer, ref, spec)
        push_out(it)
    assert it.met["preemption"] > 0
