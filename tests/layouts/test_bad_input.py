"""Malformed placements end in a ValueError that names the place, and the engine goes on."""

import json

import pytest

from invariants.checks import assert_exact
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

pytestmark = pytest.mark.engine

HEAD, A, B, QUESTION = words(21, 1), words(40, 10), words(20, 11), words(9, 2)
SPEC = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION)), anchor=4)
GOOD = [[0, 0], [21, 0], [61, 0], [81, 0]]
BAD = {
    "overlapping": ([[0, 0], [21, 0], [60, 0], [81, 0]], "token 80: logical ranges overlap"),
    "over-the-head": ([[0, 0], [20, 0], [61, 0], [81, 0]], "token 32: logical ranges overlap"),
    "the-same-place": ([[0, 0], [21, 0], [21, 0], [81, 0]], "logical ranges overlap"),
    "negative": ([[0, 0], [-1, 0], [61, 0], [81, 0]], "token 32: logical position -1"),
    "inside-the-anchor": ([[0, 0], [3, 0], [61, 0], [81, 0]], "is before 4"),
    "too-large": ([[0, 0], [21, 0], [61, 0], [5000, 0]], "beyond max_model_len"),
    "huge": ([[0, 0], [21, 0], [61, 0], [1 << 62, 0]], "beyond max_model_len"),
    "head-elsewhere": ([[5, 0], [30, 0], [70, 0], [90, 0]], "the head's logical position is 0"),
    "hides-the-anchor": ([[0, 4], [21, 0], [61, 0], [81, 0]], "only a span can hide tokens"),
    "hides-the-question": ([[0, 0], [21, 0], [61, 0], [81, 2]], "only a span can hide tokens"),
    "hides-too-much": ([[0, 0], [21, 41], [61, 0], [81, 0]], "hidden=41 of 40"),
    "hides-less-than-nothing": ([[0, 0], [21, -1], [61, 0], [81, 0]], "hidden=-1"),
    "too-few": (GOOD[:3], "3 placements for 4 segments"),
    "too-many": ([*GOOD, [90, 0]], "5 placements for 4 segments"),
    "not-last": ([[0, 0], [21, 0], [100, 0], [81, 0]], "must also be logically last"),
    "not-pairs": ([0, 21, 61, 81], "placements must be a list of"),
    "not-whole": ([[0, 0], [21.5, 0], [61, 0], [81, 0]], "placements must be a list of"),
    "text": ("all", "placements must be a list of"),
}
# A dependent segment that stands physically before what it must see.
LATE = PromptSpec((head(*HEAD), dep(*B, logical=61), span(*A, logical=21), dep(*QUESTION, logical=81)), anchor=4)
LATE_HIDDEN = PromptSpec(
    (head(*HEAD), dep(*A[:8], logical=70), span(*A, logical=21, hidden=8), dep(*QUESTION, logical=81)), anchor=4
)


@pytest.mark.parametrize("name", BAD)
def test_placements(engine, name):
    placements, says = BAD[name]
    it = engine()
    meta = json.dumps({**json.loads(SPEC.meta()), "placements": placements})
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        it.ask(SPEC, meta=meta)
    assert not it.busy


@pytest.mark.parametrize(("spec", "needed"), [(LATE, 64), (LATE_HIDDEN, 48)], ids=["late", "late-and-hidden"])
def test_what_a_segment_needs_must_come_before_it(engine, spec, needed):
    it = engine()
    with pytest.raises(ValueError, match=f"token 32: it needs the segment at token {needed}, which comes physically"):
        it.ask(spec)
    assert not it.busy


def test_the_place_of_the_head_is_the_engines(engine):
    with pytest.raises(ValueError, match="head_at is set by the engine only"):
        engine().ask(SPEC, meta=SPEC.meta(head_at=16, placements=GOOD))


def test_generating_beyond_the_model_behind_a_gap(engine):
    far = PromptSpec((head(*HEAD), span(*A, logical=900), dep(*QUESTION, logical=1010)), anchor=4)
    with pytest.raises(ValueError, match="max_tokens reaches beyond max_model_len"):
        engine().ask(far, 20)


def test_the_engine_is_unharmed(engine, reference):
    it = engine()
    for placements, _ in BAD.values():
        with pytest.raises(ValueError, match="."):
            it.ask(SPEC, meta=json.dumps({**json.loads(SPEC.meta()), "placements": placements}))
    for _ in "cold", "warm":
        assert_exact(it.ask(SPEC), reference(), SPEC)
