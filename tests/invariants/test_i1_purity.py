"""I1: what is stored under a span's hash is a function of the span and the anchor alone, whoever computed it and how."""

import pytest
import torch

from invariants.checks import assert_exact
from invariants.engines import CONTROL, Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, QUESTION = words(21, 1), words(9, 2)
A, B, C = (words(n, 30 + n) for n in (40, 15, 100))
ANCHOR = 4


def prompt(*documents, opening=HEAD, question=QUESTION, anchor=ANCHOR):
    return PromptSpec((head(*opening), *(span(*d) for d in documents), dep(*question)), anchor=anchor)


def alone(document, anchor=ANCHOR):
    return PromptSpec((head(*HEAD[:anchor]), span(*document)), anchor=anchor)


def stored(it, document, control=CONTROL):
    """Keys and values in the cache under the span's hash, its visible tokens. [layers, 2, kv heads, tokens, head]"""
    hashes = it.block_hashes(document, control.ssep)
    blocks = [it.pool.get_cached_block(h, [0])[0].block_id for h in hashes]
    layers = []
    for cache in it.caches():
        count, heads, size, double = cache.shape
        if cache.is_cuda:
            keys, values = cache[blocks].permute(1, 0, 2, 3).split(double // 2, dim=-1)
        else:  # keys are stored transposed
            split = cache.view(count, heads, 2 * size, double // 2)[blocks]
            keys = split[:, :, :size].reshape(len(blocks), heads, double // 2, size).permute(1, 0, 3, 2)
            values = split[:, :, size:].permute(1, 0, 2, 3)
        both = torch.stack((keys, values)).reshape(2, heads, len(blocks) * size, -1)
        layers.append(both[:, :, 1 : 1 + len(document)])  # behind the control token
    return torch.stack(layers).cpu()


def expected(reference, document, anchor=ANCHOR):
    """The same, from transformers: the span forwarded right behind the anchor."""
    kv = reference._span(HEAD[:anchor], document)
    return torch.stack([torch.stack((k[0], v[0])) for k, v in kv])


WAYS = {
    "alone": lambda it: it.ask(alone(A), 1),
    "first-in-a-prompt": lambda it: it.ask(prompt(A, B)),
    "last-in-a-prompt": lambda it: it.ask(prompt(C, B, A)),
    "behind-another-head": lambda it: it.ask(prompt(C, A, opening=HEAD[:ANCHOR] + words(50, 9))),
    "twice-in-a-prompt": lambda it: it.ask(prompt(A, B, A)),
    "partly-hidden-and-far-away": lambda it: it.ask(
        PromptSpec((head(*HEAD), span(*A, logical=400, hidden=11), dep(*QUESTION, logical=500)), anchor=ANCHOR)
    ),
    "beside-plain-requests": lambda it: it.run(
        Ask([*HEAD, *A], 4), Ask(prompt(B, A)), Ask([*HEAD, *A, *B], 4), Ask(prompt(A))
    ),
    "after-a-warm-span-before-it": lambda it: (it.ask(alone(C), 1), it.ask(prompt(C, A))),
}


@pytest.mark.parametrize("way", WAYS)
def test_stored_keys_and_values_are_the_references(engine, reference, way):
    it = engine()
    WAYS[way](it)
    torch.testing.assert_close(stored(it, A), expected(reference(), A), atol=1e-4, rtol=0)


@pytest.mark.parametrize("document", [A, C], ids=["40-tokens", "100-tokens"])
def test_computed_in_chunks_it_is_the_same(engine, reference, document):
    it = engine(max_num_batched_tokens=24, max_num_seqs=8)
    it.ask(prompt(B, document))
    assert it.met["chunk ends inside a span"]
    torch.testing.assert_close(stored(it, document), expected(reference(), document), atol=1e-4, rtol=0)


@pytest.mark.parametrize("anchor", [0, 1, 4, 16, 21])
def test_every_anchor_has_its_own_copy(engine, reference, anchor):
    it = engine()
    for other in (0, 1, 4, 16, 21):
        it.ask(prompt(B, A, anchor=other))
    answer = it.ask(prompt(A, C, anchor=anchor))
    assert answer.spans[0]["status"] == "hit"
    torch.testing.assert_close(stored(it, A), expected(reference(), A, anchor), atol=1e-4, rtol=0)


def test_cold_span_poisoning(engine, reference):
    """The paper's public code computes a cold span in context and stores it under its context-free hash."""
    it = engine()
    it.ask(prompt(C, A, B))  # cold, in context
    answer = it.ask(prompt(A, question=words(12, 7)))
    assert answer.spans[0]["status"] == "hit", "nothing to see unless the span comes from the cache"
    assert_exact(answer, reference(), prompt(A, question=words(12, 7)))


def test_whichever_request_came_first(engine, reference):
    it, specs = engine(), [prompt(A, B, C), prompt(C, A), prompt(B, C, A)]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        it.reset()
        for answer, i in zip(it.run(*(Ask(specs[i]) for i in order)), order, strict=True):
            assert_exact(answer, reference(), specs[i])
        torch.testing.assert_close(stored(it, A), expected(reference(), A), atol=1e-4, rtol=0)
