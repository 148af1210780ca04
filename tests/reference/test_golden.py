"""The hand-written prompts against the reference's rules, the product's parser and its plan for attention."""

import numpy as np
import pytest

from minipic_sdk.layout import ControlTokens, Placement, parse_layout
from minipic_server.plan import RequestPlan
from reference.golden.cases import GOLDEN
from reference.prompts import Control, PromptSpec

CONTROL = Control(ssep=91, pdep=92, pad=93)
SYMBOLS = {"S": 91, "D": 92, "P": 93}


def physical(golden):
    return [SYMBOLS[t] if t in SYMBOLS else int(t) for t in golden.tokens.split()]


def spec_of(golden):
    return PromptSpec(golden.pieces, anchor=golden.anchor, block=4, control=CONTROL)


def row(text):
    return [c == "x" for c in text.replace(" ", "")]


def layout_of(golden):
    placed = any(p.logical is not None or p.hidden for p in golden.pieces)
    return parse_layout(
        physical(golden),
        control=ControlTokens(*CONTROL),
        block_size=4,
        anchor=physical(golden)[: golden.anchor],
        placements=[Placement(s[5], s[6]) for s in golden.segments] if placed else None,
    )


@pytest.fixture(params=GOLDEN)
def golden(request):
    return GOLDEN[request.param]


def test_reference_writes_the_physical_prompt(golden):
    assert spec_of(golden).physical() == physical(golden)


def test_reference_positions(golden):
    tokens = spec_of(golden).tokens()
    stored, logical = ["-"] * len(physical(golden)), ["-"] * len(physical(golden))
    for t in tokens:
        stored[t.physical], logical[t.physical] = str(t.stored), str(t.logical)
    assert (stored, logical) == (golden.stored.split(), golden.logical.split())


def test_reference_visibility(golden):
    spec = spec_of(golden)
    index = [t.physical for t in spec.tokens()]
    assert index == list(golden.sees)
    for t, sees in zip(index, spec.sees(), strict=True):
        seen = [False] * len(physical(golden))
        for j, yes in zip(index, sees, strict=True):
            seen[j] = bool(yes)
        assert seen == row(golden.sees[t]), f"token {t}"


def test_parser_segments(golden):
    found = tuple(
        (s.kind, s.start, s.stop, s.visible_start, s.visible_stop, s.logical, s.hidden)
        for s in layout_of(golden).segments
    )
    assert found == golden.segments


def test_parser_canonical_positions(golden):
    ids = physical(golden)
    stored = ["-"] * len(ids)
    layout = layout_of(golden)
    for s in layout.segments:
        for k in range(s.num_visible):
            stored[s.visible_start + k] = str(layout.canonical(s) + k)
    assert stored == golden.stored.split()


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_plan_rows_see_what_the_rules_say(golden, chunk):
    """The plan attention works from, in chunks: whole visibility, and key places relative to the query's."""
    ids, plan = physical(golden), RequestPlan.from_layout(layout_of(golden))
    stored, logical = golden.stored.split(), golden.logical.split()
    spans = {i for s in golden.segments if s[0] == "span" for i in range(s[3], s[4])}
    met = set()
    for computed in range(0, len(ids), chunk):
        count = min(chunk, len(ids) - computed)
        positions = plan.positions(computed, count)
        for r in plan.rows(0, 0, computed, count):
            for k in range(r.query_len):
                t = computed + r.query_start + k
                met.add(t)
                assert positions[t - computed] == int(stored[t])
                own = r.own._replace(length=r.own.length - (r.query_len - 1 - k))
                seen = [False] * len(ids)
                for run in (*r.context, own):
                    for j in range(run.start, run.start + run.length):
                        assert not seen[j], "a key seen twice"
                        seen[j] = True
                        distance = int(stored[t]) - (int(stored[j]) + run.turn)
                        there = int(stored[j]) if t in spans else int(logical[j])
                        assert distance == int(stored[t]) - there, f"{t} sees {j} at another distance"
                assert seen == row(golden.sees[t]), f"token {t}"
    assert met == set(golden.sees)
    assert np.all(plan.positions(0, len(ids))[[s == "-" for s in stored]] == 0)
