"""Pinning on the real CPU engine: the pinned span's KV is still there and right after everything else was evicted."""

import pytest

from invariants.checks import assert_same
from invariants.engines import Ask, Engine
from scheduling.test_directed import A, B, prompt
from scheduling.test_pins import asked
from scheduling.test_properties import words


@pytest.fixture(scope="module")
def engine(tiny):
    made = Engine(tiny, num_gpu_blocks_override=40, max_model_len=256, max_num_seqs=4, pin_share=0.5)
    yield made
    made.close()


def test_a_pinned_span_survives_pressure_and_plain_requests_run(engine):
    spec = prompt(A, B)
    cold = engine.ask(spec)
    limit = engine.core.minipic("stats", None)["pin_limit"]
    assert limit == 20
    engine.reset()
    engine.warm(spec)
    assert engine.core.minipic("pin", {"spans": [asked(A)], "ttl": None}) == [None]
    plain = [Ask([*words(200)], 20) for _ in range(12)]  # four at once would take more than there is
    answers = engine.run(*plain)
    assert all(len(a.tokens) == 20 for a in answers)
    again = engine.ask(spec)
    assert [s["status"] for s in again.spans] == ["hit", "computed"]
    assert_same(again, cold)
    engine.core.minipic("unpin", [asked(A)])
    engine.run(*(Ask([*words(200)], 20) for _ in range(12)))
    last = engine.ask(spec)
    assert [s["status"] for s in last.spans] == ["computed", "computed"]
    assert_same(last, cold)


def test_with_all_pinned_that_may_be_the_longest_prompt_runs(engine):
    engine.reset()
    documents = [words(47) for _ in range(9)]
    refused = []
    for document in documents:
        engine.warm(prompt(document))
        refused += engine.core.minipic("pin", {"spans": [asked(document)], "ttl": None})
    assert [r is None for r in refused] == [True] * 6 + [False] * 3
    assert "20 KV blocks" in refused[-1]
    longest = [Ask([*words(246)], 10) for _ in range(3)]
    before = engine.run(*longest)
    assert all(len(a.tokens) == 10 for a in before)
    assert engine.core.minipic("stats", None)["pinned_blocks"] == 18
    engine.reset()  # drops pins
    assert engine.core.minipic("stats", None)["pinned_blocks"] == 0
    for mine, theirs in zip(engine.run(*longest), before, strict=True):
        assert_same(mine, theirs)
