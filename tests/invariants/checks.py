"""Comparing an engine's answer with the reference, so that a tie between two tokens can't decide a test."""

from typing import Any

import torch

from invariants.engines import Answer
from reference.prompts import PromptSpec

TOLERANCE = 1e-3  # of logprobs in fp32 (I3)
TIE = 2e-4  # two tokens closer than this may swap
# Stock vLLM on a GPU multiplies float32 as TF32; ours does not.
STOCK_TOLERANCE, STOCK_TIE = (2e-2, 2e-2) if torch.cuda.is_available() else (TOLERANCE, TIE)


def assert_exact(answer: Answer, reference: Any, prompt: PromptSpec | list[int], tolerance: float = TOLERANCE) -> None:
    """The answer's tokens are the reference's greedy ones, and every reported logprob is the reference's."""
    spans = isinstance(prompt, PromptSpec)
    spec = prompt if spans else plain(prompt)
    assert answer.tokens, "nothing was generated"
    rows = reference.logprobs(spec, answer.tokens[:-1])
    for i, (token, row) in enumerate(zip(answer.tokens, rows, strict=True)):
        where = f"generated token {i} of {answer.tokens}"
        allowed = row.clone()
        if spans:
            allowed[list(prompt.control)] = float("-inf")
        best = int(allowed.argmax())
        assert token == best or allowed[best] - allowed[token] < TIE, f"{where}: the reference says {best}"
        if answer.logprobs:
            gaps = {t: abs(p - float(row[t])) for t, p in answer.logprobs[i].items()}
            worst = max(gaps, key=gaps.__getitem__)
            assert not torch.isnan(torch.tensor(list(gaps.values()))).any(), f"{where}: NaN"
            assert gaps[worst] <= tolerance, f"{where}: logprob of {worst} is off by {gaps[worst]:.2g}"


def assert_same(one: Answer, other: Answer) -> None:
    """An answer agrees with stock's: same tokens (up to a tie), same logprobs."""
    for i, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        gap = max(abs(a[t] - b[t]) for t in a.keys() & b.keys())
        assert gap <= STOCK_TOLERANCE, f"generated token {i}: logprobs differ by {gap:.2g}"
        if one.tokens[i] != other.tokens[i]:
            assert abs(a[one.tokens[i]] - a.get(other.tokens[i], float("-inf"))) < STOCK_TIE, f"{i}: {one} {other}"
            return  # what follows a tie is another text
    assert len(one.tokens) == len(other.tokens)


def assert_differ(one: Answer, other: Answer) -> None:
    """Guards a test's premise: these two prompts must not have the same answer."""
    gap = max(abs(p - other.logprobs[0].get(t, -99.0)) for t, p in one.logprobs[0].items())
    assert gap > 10 * TOLERANCE, "the test's prompts are too alike to tell anything"


def plain(ids: list[int]) -> PromptSpec:
    """Token ids as a prompt without control tokens."""
    from reference.prompts import head

    return PromptSpec((head(*ids),))
