"""The two references, which share no code beyond the declared prompt, give the same logits; wrong rules don't."""

import numpy as np
import pytest
import torch

from reference.checkpoints import FAMILIES, make_checkpoint
from reference.hf import HFReference
from reference.naive import NaiveReference
from reference.prompts import PromptSpec, dep, head, span

A, B, C = (tuple(range(20 * i, 20 * i + n)) for i, n in ((1, 13), (2, 15), (3, 40)))
HEAD, QUESTION = (5, 6, 7, 8, 9), (300, 301, 302)
PROMPTS = {
    "plain": PromptSpec((head(*HEAD, *A),)),
    "all-dependent": PromptSpec((head(*HEAD), dep(*A), dep(*QUESTION)), anchor=3),
    "anchored": PromptSpec((head(*HEAD), span(*A), span(*B), span(*C), dep(*QUESTION)), anchor=3),
    "whole-head-anchor": PromptSpec((head(*HEAD), span(*C), span(*A), dep(*QUESTION)), anchor=5),
    "empty-anchor": PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION))),
    "no-head": PromptSpec((span(*A), span(*B), dep(*QUESTION))),
    "twice-the-same": PromptSpec((head(*HEAD), span(*A), span(*A), dep(*QUESTION)), anchor=2),
    "empty-span": PromptSpec((head(*HEAD), span(), span(*A), dep(*QUESTION)), anchor=2),
    "dependent-in-the-middle": PromptSpec((head(*HEAD), span(*A), dep(*B), span(*C), dep(*QUESTION)), anchor=3),
    "order-free": PromptSpec(
        (
            head(*HEAD),
            span(*A, logical=30),
            span(*C, logical=50),
            dep(*B, logical=5),
            dep(44, 45, logical=20),
            dep(*QUESTION, logical=90),
        ),
        anchor=4,
    ),
    "epic": PromptSpec(
        (
            head(*HEAD),
            span(*A, logical=5, hidden=4),
            span(*B, logical=18, hidden=15),
            dep(*A[:4], logical=5),
            dep(*B, logical=18),
            dep(*QUESTION, logical=33),
        ),
        anchor=3,
    ),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    made = {}

    def get(family):
        if family not in made:
            path = make_checkpoint(tmp_path_factory.mktemp("models"), family)
            made[family] = HFReference(path, torch.float64), NaiveReference(path)
        return made[family]

    return get


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_and_the_naive_forward_agree(references, family, name):
    hf, naive = references(family)
    continuation = [77, 78, 79]
    ours = hf.logits(PROMPTS[name], continuation).numpy()
    # Transformers computes rotary angles in float32.
    np.testing.assert_allclose(ours, naive.logits(PROMPTS[name], continuation), atol=2e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_dependent_is_a_plain_forward(references, family):
    hf, _ = references(family)
    spec = PROMPTS["all-dependent"]
    with torch.no_grad():
        plain = hf.model(torch.tensor([spec.bare()])).logits[0, -1]
    torch.testing.assert_close(hf.logits(spec)[-1], plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_first_span_behind_its_anchor_is_a_plain_forward(references, family):
    hf, _ = references(family)
    spec = PromptSpec((head(*HEAD), span(*C), dep(*QUESTION)), anchor=5)
    with torch.no_grad():
        plain = hf.model(torch.tensor([spec.bare()])).logits[0, -1]
    torch.testing.assert_close(hf.logits(spec)[-1], plain, atol=1e-5, rtol=0)


WRONG = {
    "another-order": PromptSpec((head(*HEAD), span(*B), span(*A), span(*C), dep(*QUESTION)), anchor=3),
    "no-anchor": PromptSpec((head(*HEAD), span(*A), span(*B), span(*C), dep(*QUESTION))),
    "longer-anchor": PromptSpec((head(*HEAD), span(*A), span(*B), span(*C), dep(*QUESTION)), anchor=5),
    "no-span-mask": PromptSpec((head(*HEAD), dep(*A), dep(*B), dep(*C), dep(*QUESTION)), anchor=3),
    "moved-by-one": PromptSpec((head(*HEAD), span(*A, logical=6), span(*B), span(*C), dep(*QUESTION)), anchor=3),
    "one-token-hidden": PromptSpec((head(*HEAD), span(*A), span(*B, hidden=1), span(*C), dep(*QUESTION)), anchor=3),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_rule_shows_in_the_logprobs(references, family, name):
    hf, _ = references(family)
    right, wrong = (hf.logprobs(spec, [77, 78]) for spec in (PROMPTS["anchored"], WRONG[name]))
    # Fifty times the tolerance of the invariants' tests.
    assert (right - wrong).abs().max() > 0.05


def test_greedy_never_picks_a_banned_token(references):
    hf, _ = references("llama")
    spec = PROMPTS["anchored"]
    free = hf.greedy(spec, 2)
    banned = hf.greedy(spec, 2, banned=(free[0], 510, 511))
    assert banned[0] != free[0]
