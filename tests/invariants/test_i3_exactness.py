"""I3: span-mode logits equal the transformers reference, for every supported architecture, cold, warm and half-warm."""

import pytest

from invariants.checks import assert_exact
from invariants.engines import Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, QUESTION = words(21, 1), words(9, 2)
A, B, C, D = (words(n, 10 + n) for n in (15, 40, 100, 31))  # 15 and 31 end exactly on a block boundary of 16
PROMPTS = {
    "one-span": PromptSpec((head(*HEAD), span(*A), dep(*QUESTION)), anchor=4),
    "three-spans": PromptSpec((head(*HEAD), span(*A), span(*B), span(*C), dep(*QUESTION)), anchor=4),
    "whole-head-anchor": PromptSpec((head(*HEAD), span(*B), span(*D), dep(*QUESTION)), anchor=21),
    "anchor-crosses-a-block": PromptSpec((head(*HEAD), span(*B), span(*D), dep(*QUESTION)), anchor=18),
    "anchor-of-one": PromptSpec((head(*HEAD), span(*C), span(*A), dep(*QUESTION)), anchor=1),
    "empty-anchor": PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION))),
    "no-head": PromptSpec((span(*C), span(*D), dep(*QUESTION))),
    "head-of-whole-blocks": PromptSpec((head(*words(32, 3)), span(*A), span(*B), dep(*QUESTION)), anchor=32),
    "twice-the-same": PromptSpec((head(*HEAD), span(*B), span(*A), span(*B), dep(*QUESTION)), anchor=4),
    "empty-document": PromptSpec((head(*HEAD), span(), span(*B), span(), dep(*QUESTION)), anchor=4),
    "one-token-document": PromptSpec((head(*HEAD), span(7), span(*B), dep(8)), anchor=4),
    "dependent-between": PromptSpec(
        (head(*HEAD), span(*A), dep(*D), span(*B), dep(*words(20, 4)), span(*C), dep(*QUESTION)), anchor=4
    ),
    "dependent-first": PromptSpec((dep(*HEAD), span(*A), span(*B), dep(*QUESTION))),
    "order-free": PromptSpec(
        (
            head(*HEAD),
            span(*A, logical=200),
            span(*B, logical=30),
            span(*C, logical=90),
            dep(*words(9, 5), logical=21),
            dep(*words(3, 6), logical=80),
            dep(*QUESTION, logical=300),
        ),
        anchor=4,
    ),
    "epic": PromptSpec(
        (
            head(*HEAD),
            span(*B, logical=21, hidden=8),
            span(*C, logical=61, hidden=8),
            dep(*B[:8], logical=21),
            dep(*C[:8], logical=61),
            dep(*QUESTION, logical=161),
        ),
        anchor=4,
    ),
    "hidden-to-the-middle-of-a-block": PromptSpec(
        (head(*HEAD), span(*C, logical=21, hidden=37), dep(*QUESTION, logical=121)), anchor=4
    ),
    "a-span-wholly-hidden": PromptSpec(
        (head(*HEAD), span(*A, logical=30, hidden=15), span(*B, logical=50), dep(*QUESTION, logical=90)), anchor=4
    ),
    "far-away": PromptSpec((head(*HEAD), span(*B, logical=700), dep(*QUESTION, logical=900)), anchor=4),
}
FAMILIES = ["llama", "llama3", "qwen3", "mistral", "granite"]


def parts(spec):
    """Each span alone behind the prompt's anchor, as warming sends it."""
    anchor = (head(*spec.pieces[0].tokens[: spec.anchor]),) if spec.anchor else ()
    plain = [span(*p.tokens) for p in spec.pieces if p.kind == "span" and p.tokens]
    return [PromptSpec((*anchor, p), anchor=spec.anchor, block=spec.block) for p in plain]


@pytest.mark.parametrize("name", PROMPTS)
def test_cold_and_then_warm(engine, reference, name):
    it, spec = engine(), PROMPTS[name]
    cold = it.ask(spec)
    assert_exact(cold, reference(), spec)
    assert cold.cached == 0
    warm = it.ask(spec)
    assert_exact(warm, reference(), spec)
    whole = (len(spec.physical()) - 1) // 16 * 16
    assert warm.cached == whole, "every full block of the prompt was there"


@pytest.mark.parametrize("name", PROMPTS)
def test_half_warm(engine, reference, name):
    it, spec = engine(), PROMPTS[name]
    alone = parts(spec)
    it.warm(*alone[1:])  # the first span is missing: every later one must still be used
    answer = it.ask(spec)
    assert_exact(answer, reference(), spec)
    filled = sum(len(s.physical()) - (16 if s.anchor and s.anchor <= 16 else 32 if s.anchor else 0) for s in alone[1:])
    first = alone[0].pieces[-1].tokens if alone else ()
    if all(s.pieces[-1].tokens != first for s in alone[1:]):
        assert answer.cached >= filled, "a missing span cost the others their hit"


@pytest.mark.parametrize("name", PROMPTS)
def test_in_chunks(engine, reference, name):
    it, spec = engine(max_num_batched_tokens=24, max_num_seqs=8), PROMPTS[name]
    assert_exact(it.ask(spec), reference(), spec)
    assert_exact(it.ask(spec), reference(), spec)


@pytest.mark.parametrize("family", FAMILIES)
def test_architectures(engine, reference, family):
    it, ref = engine(family), reference(family)
    for spec in PROMPTS.values():
        assert_exact(it.ask(spec), ref, spec)
    for answer, spec in zip(it.run(*map(Ask, PROMPTS.values())), PROMPTS.values(), strict=True):
        assert_exact(answer, ref, spec)


@pytest.mark.parametrize("block", [16, 32, 64])
def test_block_sizes(engine, reference, block):
    from dataclasses import replace

    it = engine(block_size=block, num_gpu_blocks_override=80)
    for spec in PROMPTS.values():
        spec = replace(spec, block=block)
        assert_exact(it.ask(spec), reference(), spec)
        assert_exact(it.ask(spec), reference(), spec)


def test_all_prompts_in_one_batch_share_what_is_in_flight(engine, reference):
    it = engine()
    for answer, spec in zip(it.run(*map(Ask, PROMPTS.values())), PROMPTS.values(), strict=True):
        assert_exact(answer, reference(), spec)


def test_long_generations_stay_exact(engine, reference):
    spec = PROMPTS["order-free"]
    assert_exact(engine().ask(spec, 60), reference(), spec)
