# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""I3 for every layout: the engine's answer to what the SDK lays out is the written-out method's, cold, warm, half-warm."""

import random

import pytest

from invariants.checks import assert_exact
from invariants.engines import CONTROL, Ask
from layouts.methods import D, T, epic, full, parts, placed, spans
from minipic_sdk.layout import ControlTokens
from minipic_sdk.layouts import Anchored, Block, Epic, Prefix
from minipic_sdk.layouts.base import Part, Piece, Rules, place
from minipic_sdk.protocol import RequestMeta
from reference.corpus import words

pytestmark = pytest.mark.engine

HEAD, QUESTION = T(words(21, 1)), T(words(9, 2))
A, B, C, TINY = D(words(40, 10)), D(words(70, 11)), D(words(31, 12)), D(words(5, 13))
BETWEEN = T(words(11, 14))
GIVEN = {
    "documents": [HEAD, A, B, C, QUESTION],
    "text-between": [HEAD, A, BETWEEN, B, TINY, C, QUESTION],
    "twice-the-same": [HEAD, B, A, B, QUESTION],
    "no-head": [A, C, QUESTION],
    "all-tiny": [HEAD, TINY, TINY, QUESTION],
    "text-first": [HEAD, T(words(3, 15)), B, QUESTION],
}
METHODS = {
    "anchored": (Anchored(), lambda g, n: spans(g, min(4, n))),
    "anchor-16": (Anchored(16), lambda g, n: spans(g, 16)),
    "anchor-head": (Anchored("head"), lambda g, n: spans(g, n)),
    "block": (Block(), lambda g, n: spans(g, 0)),
    "epic-8": (Epic(8), lambda g, n: epic(g, min(4, n), 8)),
    "epic-31": (Epic(), lambda g, n: epic(g, min(4, n), 31)),
    "epic-16-bare": (Epic(16, base="block"), lambda g, n: epic(g, 0, 16)),
    "epic-8-head": (Epic(8, anchor="head"), lambda g, n: epic(g, n, 8)),
    "prefix": (Prefix(), lambda g, n: full(g)),
}
CASES = [(m, g) for m in METHODS for g in GIVEN if not (m == "anchor-16" and g == "no-head")]


def laid_out(layout, given, tokens=6):
    """What the SDK would send for a prompt of these pieces, and the length of its head."""
    pieces = [Piece("span" if isinstance(g, D) else "text", list(g.ids)) for g in given]
    head = [t for g in given[: _leading(given)] for t in g.ids]
    arrangement = layout(pieces, Rules(ControlTokens(*CONTROL), 16, head[:4]))
    return ask(arrangement, tokens), len(head)


def ask(arrangement, tokens=6):
    meta = RequestMeta(anchor=arrangement.anchor, placements=arrangement.placements)
    return Ask(arrangement.token_ids, tokens, meta=meta.to_json())


def merged(given):
    """Texts that open the prompt as one head, which is how the methods are written."""
    count = _leading(given)
    return [T(tuple(t for g in given[:count] for t in g.ids)), *given[count:]] if count > 1 else given


def _leading(given):
    return next((i for i, g in enumerate(given) if isinstance(g, D)), len(given))


@pytest.mark.parametrize(("method", "name"), CASES)
def test_cold_and_then_warm(engine, reference, method, name):
    it, (layout, written) = engine(), METHODS[method]
    sent, head = laid_out(layout, GIVEN[name])
    spec = written(merged(GIVEN[name]), head)
    cold, warm = it.run(sent)[0], it.run(sent)[0]
    assert_exact(cold, reference(), spec)
    assert_exact(warm, reference(), spec)
    assert warm.cached == (len(sent.prompt) - 1) // 16 * 16, "every full block of the prompt was there"


@pytest.mark.parametrize("method", ["anchored", "block", "epic-8", "epic-16-bare", "epic-8-head"])
def test_half_warm(engine, reference, method):
    it, (layout, written) = engine(), METHODS[method]
    sent, head = laid_out(layout, GIVEN["documents"])
    spec = written(GIVEN["documents"], head)
    it.warm(*parts(spec)[1:])
    answer = it.run(sent)[0]
    assert_exact(answer, reference(), spec)
    assert [s["status"] for s in answer.spans].count("hit") == 2
    # 71 and 32 tokens of B and C with their SSEP fill 80 and 32: what was warmed stays warm in any layout.
    assert answer.cached >= 112


def test_all_in_one_batch(engine, reference):
    it = engine()
    asks, specs = [], []
    for method, name in CASES[::3]:
        layout, written = METHODS[method]
        sent, head = laid_out(layout, GIVEN[name])
        asks.append(sent)
        specs.append(written(merged(GIVEN[name]), head))
    for answer, spec in zip(it.run(*asks), specs, strict=True):
        assert_exact(answer, reference(), spec)


@pytest.mark.parametrize("seed", range(6))
def test_random_prompts(engine, reference, seed):
    source = random.Random(seed)
    given: list[T | D] = [T(words(source.randint(1, 40), seed))]
    for i in range(source.randint(1, 5)):
        kind = T if source.random() < 0.3 else D
        given.append(kind(words(source.randint(0 if kind is D else 1, 60), 100 * seed + source.randint(0, 3) + i)))
    given.append(QUESTION)
    k, anchor = source.randint(1, 40), source.choice([0, 1, "head"])
    base = "block" if anchor == 0 else "anchored"
    it = engine()
    flat = merged(given)
    length = len(flat[0].ids)
    number = length if anchor == "head" else anchor
    for layout, spec in (
        (Epic(k, base, anchor or None), epic(flat, number, k)),
        (Block() if base == "block" else Anchored(anchor), spans(_joined(flat), number)),
    ):
        sent, _ = laid_out(layout, given)
        for _ in "cold", "warm":
            assert_exact(it.run(sent)[0], reference(), spec)


def _joined(given):
    """Neighbouring texts are one segment."""
    out = [given[0]]
    for g in given[1:]:
        both = isinstance(g, T) and isinstance(out[-1], T) and len(out) > 1
        out[-1:] = [T(out[-1].ids + g.ids)] if both else [out[-1], g]
    return out


def test_modules_with_gaps(engine, reference):
    """Fixed positions: gaps before, between and behind; text right behind a module."""
    given = [HEAD, D(A.ids, 60), T(words(4, 20)), D(C.ids, 200), D(B.ids, 300), QUESTION]
    parts_ = [Part("head", list(HEAD.ids), 0)]
    at = 0
    for i, g in enumerate(given[1:], 1):
        at = g.place if isinstance(g, D) else at
        parts_.append(Part("span" if isinstance(g, D) else "dependent", list(g.ids), at, 0, i))
        at += len(g.ids)
    sent = ask(place(parts_, Rules(ControlTokens(*CONTROL), 16, ()), HEAD.ids[:4]))
    it = engine()
    for _ in "cold", "warm":
        assert_exact(it.run(sent)[0], reference(), placed(given, 4))
