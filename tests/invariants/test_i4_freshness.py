"""I4: a dependent block hits only if everything it depends on is the same: tokens, order, places, visibility, salt."""

from dataclasses import replace

import pytest

from invariants.checks import assert_differ, assert_exact
from invariants.engines import Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD = words(21, 1)
A, B, C = (words(n, 40 + n) for n in (15, 31, 47))
LONG = words(70, 2)  # a question of several blocks, so that it can be hit
BASE = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*LONG)), anchor=4)


def pieces(*changed, anchor=4):
    return PromptSpec(changed, anchor=anchor)


OTHERS = {
    "another-first-span": pieces(head(*HEAD), span(*C), span(*B), dep(*LONG)),
    "same-length-first-span": pieces(head(*HEAD), span(*words(15, 9)), span(*B), dep(*LONG)),
    "another-order": pieces(head(*HEAD), span(*B), span(*A), dep(*LONG)),
    "one-span-less": pieces(head(*HEAD), span(*B), dep(*LONG)),
    "one-span-twice": pieces(head(*HEAD), span(*A), span(*B), span(*B), dep(*LONG)),
    "another-head-behind-the-anchor": pieces(head(*HEAD[:20], 17), span(*A), span(*B), dep(*LONG)),
    "another-anchor": pieces(head(*HEAD), span(*A), span(*B), dep(*LONG), anchor=5),
    "no-anchor": pieces(head(*HEAD), span(*A), span(*B), dep(*LONG), anchor=0),
    "a-span-made-dependent": pieces(head(*HEAD), dep(*A), span(*B), dep(*LONG)),
    "moved-further": pieces(head(*HEAD), span(*A), span(*B), dep(*LONG, logical=70)),
    "a-span-moved": pieces(head(*HEAD), span(*A), span(*B, logical=37), dep(*LONG, logical=68)),
    "partly-hidden": pieces(head(*HEAD), span(*A), span(*B, hidden=5), dep(*LONG)),
    "wholly-hidden": pieces(head(*HEAD), span(*A, hidden=15), span(*B), dep(*LONG)),
    "a-dependent-before-it": pieces(head(*HEAD), span(*A), span(*B), dep(3), dep(*LONG)),
    "everything-in-the-head": pieces(head(*HEAD, *A, *B), dep(*LONG)),
}


def own_blocks(spec):
    """Physical index of the last dependent piece's first block."""
    return len(spec.physical()) - 1 - len(spec.pieces[-1].tokens)


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_changed_before_it_the_question_is_computed_anew(engine, reference, name):
    it, other = engine(), OTHERS[name]
    first = it.ask(BASE)
    answer = it.ask(other)
    assert_exact(answer, reference(), other)
    assert_differ(first, answer)
    assert answer.cached <= own_blocks(other), "a block of the question was taken from another prompt"
    again = it.ask(BASE)  # and the first prompt's blocks are still the first prompt's
    assert_exact(again, reference(), BASE)
    assert again.cached > own_blocks(BASE), "the same prompt must hit its question's full blocks"


def test_the_place_of_a_span_it_sees_matters_by_itself(engine, reference):
    """The same question at the same place, behind the same spans: only the gap between them is elsewhere."""
    it = engine()
    one, other = (pieces(head(*HEAD), span(*A), span(*B, logical=at), dep(*LONG, logical=90)) for at in (40, 50))
    first, second = it.ask(one), it.ask(other)
    assert_exact(first, reference(), one)
    assert_exact(second, reference(), other)
    assert_differ(first, second)
    assert second.cached <= own_blocks(other)


def test_the_stale_pdep_hit_of_the_public_code(engine, reference):
    """[S A][S B][P q] and [S C][S B][P q] must not share q: the public code hashes a slice of the block itself."""
    it = engine()
    one, other = (PromptSpec((span(*x), span(*B), dep(*LONG))) for x in (A, C))
    assert_exact(it.ask(one), reference(), one)
    assert_exact(it.ask(other), reference(), other)
    for answer, spec in zip(it.run(Ask(one), Ask(other)), (one, other), strict=True):
        assert_exact(answer, reference(), spec)


def test_a_dependent_piece_in_the_middle_depends_on_what_is_before_it_only(engine, reference):
    it = engine()
    middle = words(47, 5)

    def prompt(before, behind):
        return PromptSpec((head(*HEAD), span(*before), dep(*middle), span(*behind), dep(9)), anchor=4)

    it.ask(prompt(A, B))
    same = it.ask(prompt(A, C))
    assert_exact(same, reference(), prompt(A, C))
    fresh = it.ask(prompt(C, B))
    assert_exact(fresh, reference(), prompt(C, B))


def test_generated_blocks_are_fresh_too(engine, reference):
    """What was generated is cached behind the prompt; the same text behind another prompt is another thing."""
    it = engine()
    text = it.ask(BASE, 40).tokens
    for spec in (BASE, OTHERS["another-order"], OTHERS["partly-hidden"]):
        longer = spec.extended(text)
        assert_exact(it.ask(longer), reference(), longer)


def test_physical_order_alone_changes_no_key(engine, reference):
    """The same logical prompt, physically in another order, hits everything (docs/adr/0002)."""
    it = engine()
    placed = [head(*HEAD), span(*A, logical=21), span(*B, logical=36), span(*C, logical=67), dep(*LONG, logical=114)]
    it.ask(PromptSpec(tuple(placed), anchor=4))
    for order in ([0, 3, 1, 2, 4], [0, 2, 3, 1, 4]):
        spec = PromptSpec(tuple(placed[i] for i in order), anchor=4)
        answer = it.ask(spec)
        assert_exact(answer, reference(), spec)
        assert answer.cached == (len(spec.physical()) - 1) // 16 * 16


@pytest.mark.parametrize("block", [32, 64])
def test_other_block_sizes(engine, reference, block):
    it = engine(block_size=block, num_gpu_blocks_override=80)
    for spec in (BASE, *OTHERS.values(), BASE):
        spec = replace(spec, block=block)
        assert_exact(it.ask(spec, 3), reference(), spec)
