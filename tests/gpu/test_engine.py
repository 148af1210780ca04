"""The whole engine on a GPU, beyond what tests/invariants runs there eagerly: CUDA graphs, bfloat16, preemption, scale."""

import random
from collections import Counter

import pytest

from invariants.checks import assert_exact
from invariants.engines import Ask
from invariants.test_i3_exactness import PROMPTS
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

GRAPHS = {
    "enforce_eager": False,
    "max_num_seqs": 64,
    "num_gpu_blocks_override": 6000,
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]},
}
DECODE_GRAPHS = {  # no torch.compile: faster to start
    **GRAPHS,
    "compilation_config": {**GRAPHS["compilation_config"], "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
HEAD = words(21, 1)
DOCUMENTS = [words(20 + 7 * i, 30 + i) for i in range(12)]


def rag(seed, documents=4):
    """A prompt of several documents in a random order, and a question of its own."""
    rng = random.Random(seed)
    spans = [span(*d) for d in rng.sample(DOCUMENTS, documents)]
    return PromptSpec((head(*HEAD), *spans, dep(*words(rng.randrange(1, 40), seed))), anchor=4)


def watch_graphs(it):
    """Counts replays by the class of their descriptor."""
    manager = it.core.model_executor.driver_worker.worker.model_runner.cudagraph_manager
    met, run = Counter(), type(manager).run_fullgraph

    def counted(desc):
        met[type(desc).__name__] += 1
        return run(manager, desc)

    manager.run_fullgraph = counted
    return met


@pytest.mark.parametrize("family", ["llama3"])
def test_graphs_with_changing_batches(engine, reference, family):
    it, ref = engine(family, **DECODE_GRAPHS), reference(family)
    it.poison()
    met = watch_graphs(it)
    for size in (1, 5, 3, 40, 2, 17):
        prompts = [rag(100 * size + i) for i in range(size)]
        for answer, spec in list(
            zip(it.run(*(Ask(p, 5 + i % 4) for i, p in enumerate(prompts))), prompts, strict=True)
        )[:6]:
            assert_exact(answer, ref, spec)
    for answer, spec in zip(it.run(*map(Ask, PROMPTS.values())), PROMPTS.values(), strict=True):
        assert_exact(answer, ref, spec)
    plain = [list(words(n, n)) for n in (30, 64, 200)]
    for answer, ids in zip(it.run(*(Ask(p) for p in plain)), plain, strict=True):
        assert_exact(answer, ref, ids)
    mixed = [*plain, rag(7), rag(8), rag(9)]
    for answer, prompt in zip(it.run(*(Ask(p, 12) for p in mixed)), mixed, strict=True):
        assert_exact(answer, ref, prompt)
    assert met["SpanDescriptor"] > 20, met


def test_questions_behind_cached_spans_are_replayed_whole(engine, reference):
    it, ref = engine("llama3", **DECODE_GRAPHS), reference("llama3")
    it.poison()
    met = watch_graphs(it)
    for seed in range(300, 312):  # half of them meet documents that are not cached yet
        spec = rag(seed)
        assert_exact(it.ask(spec, 4), ref, spec)
    assert met["QuestionDescriptor"] >= 6, met
    before = met["QuestionDescriptor"]
    for size in (2, 5, 8):
        prompts = [rag(400 + 10 * size + i) for i in range(size)]
        for answer, spec in zip(it.run(*(Ask(p, 3 + i % 3) for i, p in enumerate(prompts))), prompts, strict=True):
            assert_exact(answer, ref, spec)
    mixed = [list(words(40, 5)), rag(7), rag(8)]  # a plain request keeps the batch out of those graphs
    for answer, prompt in zip(it.run(*(Ask(p, 6) for p in mixed)), mixed, strict=True):
        assert_exact(answer, ref, prompt)
    assert met["QuestionDescriptor"] > before, met


def test_preemption(engine, reference):
    it = engine("llama3", num_gpu_blocks_override=70, max_num_seqs=16)
    prompts = [rag(i) for i in range(12)]
    for answer, spec in zip(it.run(*(Ask(p, 60) for p in prompts)), prompts, strict=True):
        assert_exact(answer, reference("llama3"), spec)
    assert it.met["preemption"] > 0


def test_a_thousand_requests_share_spans_at_different_offsets(engine, reference):
    it, ref = engine("llama3", **DECODE_GRAPHS), reference("llama3")
    prompts = [rag(1000 + i) for i in range(1024)]
    answers = it.run(*(Ask(p, 8) for p in prompts))
    for i in range(0, 1024, 37):
        assert_exact(answers[i], ref, prompts[i])
    assert sum(a.cached for a in answers) > 0.6 * sum(len(p.physical()) for p in prompts)


def gaps(answers, ref, prompts):
    """Mean gap of the first token's top logprobs from the float32 reference."""
    out = []
    for answer, prompt in zip(answers, prompts, strict=True):
        spec = prompt if isinstance(prompt, PromptSpec) else PromptSpec((head(*prompt),))
        row = ref.logprobs(spec)[0]
        out.append(sum(abs(p - float(row[t])) for t, p in answer.logprobs[0].items()) / len(answer.logprobs[0]))
    return out


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_bfloat16_spans_are_as_near_the_reference_as_plain_prompts(engine, reference, family):
    it, ref = engine(family, dtype="bfloat16", **GRAPHS), reference(family)
    it.poison()
    prompts = [rag(i) for i in range(64)]
    plain = [p.bare() for p in prompts]
    far = gaps(it.run(*(Ask(p) for p in plain)), ref, plain)
    it.run(*(Ask(p, 1) for p in prompts[:32]))  # half of them find their spans in the cache
    near = gaps(it.run(*(Ask(p) for p in prompts)), ref, prompts)
    print(f"{family}: mean gap spans {sum(near) / 64:.4f}, plain {sum(far) / 64:.4f}, worst {max(near):.4f}")
    assert sum(near) < 1.25 * sum(far)
    assert max(near) < 2 * max(far)


def test_bfloat16_plain_requests_are_stock_to_the_bit(engine, stock):
    options = {"dtype": "bfloat16", **GRAPHS, "block_size": 16}
    it, other = engine("llama3", **options), stock("llama3", **options)
    plain = [list(words(n, n)) for n in (30, 64, 200, 500, 900)]
    for _ in range(2):
        for prompt in plain:
            mine, theirs = it.ask(prompt, 24), other.run(prompt, tokens=24)[0]
            assert (len(prompt), mine.tokens, mine.logprobs) == (len(prompt), theirs.tokens, theirs.logprobs)
