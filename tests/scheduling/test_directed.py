"""Situations that need an exact constellation, each one a hole that was there or could be."""

import pytest

from reference.prompts import PromptSpec, dep, head, span
from scheduling.dry import EmptyConnector, answer
from scheduling.test_properties import ANCHOR, check_empty, words

A, B, C, LONG = words(40), words(47), words(30), words(300)
HEAD = (*ANCHOR, *words(17))


def prompt(*documents, question=(7, 8, 9), heading=HEAD):
    """Head, spans, question."""
    return PromptSpec((head(*heading), *(span(*d) for d in documents), dep(*question)), anchor=len(ANCHOR))


def warm(*documents, heading=HEAD):
    """Head and spans, nothing to generate."""
    return PromptSpec((head(*heading), *(span(*d) for d in documents)), anchor=len(ANCHOR))


def finish(d, asked):
    d.drain()
    for request_id, (spec, tokens) in asked.items():
        assert d.outputs[request_id] == answer(spec, tokens)
    check_empty(d)


@pytest.mark.parametrize("v2", [False, True])
def test_a_chunk_preempted_in_its_own_step_is_never_hit(dry, v2):
    """Priority preemption takes back what this step scheduled; its published blocks were never written."""
    preempted = 0
    for blocks in range(24, 27):
        for lead in (11, 12, 13):
            d = dry(
                blocks=blocks,
                v2=v2,
                scheduling_policy="priority",
                long_prefill_token_threshold=48,
                max_num_batched_tokens=96,
            )
            asked = {d.add(prompt(LONG), 2, priority=2): (prompt(LONG), 2)}
            d.step()
            for other in (prompt(question=words(n)) for n in [lead] * 3):
                asked[d.add(other, 14)] = (other, 14)
            for _ in range(20):
                d.step()
            preempted += d.scheduler.requests.get("r1") is None or d.scheduler.requests["r1"].num_preemptions > 0
            again = prompt(LONG, question=words(5))
            asked[d.add(again, 2, priority=1)] = (again, 2)
            finish(d, asked)
    assert preempted


@pytest.mark.parametrize("budget", [16, 64, 400])
def test_without_reading_the_cache_the_head_stays_first(dry, budget):
    """A span computed before its anchor would read what isn't there."""
    d = dry(blocks=100, max_num_batched_tokens=budget)
    other = (*ANCHOR, *words(20))
    asked = {d.add(prompt(A, B), 2): (prompt(A, B), 2)}
    d.drain()
    spec = prompt(A, C, B, heading=other)
    asked[d.add(spec, 4, skip_reading_prefix_cache=True)] = (spec, 4)
    finish(d, asked)
    assert d.scheduler.span_counts["in_place"] == 2


def test_a_request_that_reads_no_cache_hits_nothing_and_waits_for_nobody(dry):
    d = dry(blocks=100)
    d.add(warm(A))
    d.drain()
    asked = {d.add(prompt(A, LONG), 2): (prompt(A, LONG), 2)}
    d.step()  # in the middle of LONG
    other = prompt(A, LONG, question=(5, 6))
    reader = d.add(other, 2, skip_reading_prefix_cache=True)
    asked[reader] = (other, 2)
    finish(d, asked)
    assert {(s["status"], s["reason"]) for s in d.scheduler.span_log[reader]} == {
        ("computed", "the request reads no cache")
    }
    counts = d.scheduler.span_counts
    assert (counts["hits"], counts["waited"]) == (1, 0)


@pytest.mark.parametrize("budget", [16, 64, 400])
def test_resumed_behind_another_arrangement(dry, budget):
    """The first arrangement put cached spans before the head; after preemption they are gone."""
    for v2 in (False, True):
        d = dry(blocks=100, max_num_batched_tokens=budget, v2=v2)
        asked = {d.add(prompt(A, B), 1): (prompt(A, B), 1)}
        d.drain()
        spec = prompt(C, A, B, heading=(*ANCHOR, *words(25)))
        asked[d.add(spec, 6)] = (spec, 6)
        while not d.outputs["r2"]:
            d.step()
        assert d.scheduler.requests["r2"].prompt_token_ids != spec.physical(), "nothing was arranged"
        d.scheduler.reset_prefix_cache(reset_running_requests=True)
        finish(d, asked)


@pytest.mark.parametrize("budget", [16, 64, 400])
def test_resumed_where_a_connector_keeps_the_arrangement(dry, budget):
    """A prompt is arranged once beside a KV connector: when cached spans are gone, their anchor must come before them.

    Otherwise a chunk computes a span whose anchor's blocks aren't even allocated, and publishes it under the span's hash.
    """
    for lost in ("resumed", "waiting"):
        d = dry(blocks=100, max_num_batched_tokens=budget)
        d.scheduler.connector = EmptyConnector()
        asked = {d.add(prompt(A, B), 1): (prompt(A, B), 1)}
        d.drain()
        spec = prompt(C, A, B, heading=(*ANCHOR, *words(25)))
        asked[d.add(spec, 6)] = (spec, 6)
        if lost == "waiting":  # looked up, arranged, but no room for it
            d.scheduler._get_local_prefix_cache_hit(d.scheduler.requests["r2"])
            d.scheduler._asked = None
        else:
            while not d.outputs["r2"]:
                d.step()
        assert d.scheduler.requests["r2"].prompt_token_ids != spec.physical(), "nothing was arranged"
        d.scheduler.reset_prefix_cache(reset_running_requests=True)
        finish(d, asked)


def test_an_aborted_owner_leaves_its_waiter_free(dry):
    d = dry(blocks=100, max_num_batched_tokens=64, long_prefill_token_threshold=48)
    d.add(prompt(LONG), 2)
    d.step()
    asked = {d.add(prompt(LONG, A), 2): (prompt(LONG, A), 2)}
    d.step()
    assert d.scheduler.span_counts["waited"], "the second must wait for the first"
    before = d.runner.computed
    d.abort("r1")
    finish(d, asked)
    assert d.runner.computed - before < len(prompt(LONG, A).physical()), "what the first had computed is lost"
    assert d.scheduler.span_counts["computed_twice"] == d.twice == 0


def test_waiting_is_bounded(dry, monkeypatch):
    """An owner that gets no tokens must not hold up others for ever."""
    from minipic_server import scheduler

    monkeypatch.setattr(scheduler, "MAX_WAIT_STEPS", 3)
    d = dry(blocks=100, max_num_batched_tokens=16)
    asked = {d.add(prompt(LONG), 2): (prompt(LONG), 2)}
    d.step()
    asked[d.add(prompt(LONG, A), 2)] = (prompt(LONG, A), 2)
    finish(d, asked)
    assert d.scheduler.span_counts["in_place"] == 0, "with a budget this small the owner has it all anyway"
    d = dry(blocks=100, max_num_batched_tokens=48, long_prefill_token_threshold=16)
    asked = {d.add(prompt(LONG), 2): (prompt(LONG), 2), d.add(prompt(LONG, A), 2): (prompt(LONG, A), 2)}
    finish(d, asked)
    assert d.scheduler.span_counts["in_place"] == 1


def test_one_step_shares_what_its_first_request_only_begins(dry):
    d = dry(blocks=200, max_num_batched_tokens=400, long_prefill_token_threshold=48)
    asked = {d.add(p, 2): (p, 2) for p in (prompt(LONG, question=words(n)) for n in range(1, 6))}
    finish(d, asked)
    assert d.twice == 0
    assert d.runner.computed < len(prompt(LONG).physical()) + 5 * 60


def test_warming_again_recomputes_one_block(dry):
    """A prompt of cached spans alone must still end in a span, not in its padded head."""
    d = dry(blocks=100)
    for documents in ((A,), (A, B), (A, B, C), (B, A)):
        d.add(warm(*documents), 1)
        d.drain()
    before = d.runner.computed
    d.add(warm(C, B, A), 1)
    d.drain()
    assert d.runner.computed - before == 16
    check_empty(d)


def test_half_warm_prompts_of_spans_compute_the_missing_one_only(dry):
    d = dry(blocks=100)
    d.add(warm(A, B), 1)
    d.drain()
    before = d.runner.computed
    d.add(warm(C, A, B), 1)
    d.add(warm(A, LONG, B), 1)
    d.drain()
    assert d.runner.computed - before == len(span_tokens(C)) + len(span_tokens(LONG))
    check_empty(d)


def span_tokens(document):
    return range(-(-(len(document) + 1) // 16) * 16)


def test_a_full_cache_rearranges_a_request_until_it_fits(dry):
    """Arranged, no blocks for it, arranged again after its spans were evicted."""
    d = dry(blocks=34)
    asked = {d.add(prompt(A, B), 1): (prompt(A, B), 1)}
    d.drain()
    long = prompt(LONG, question=words(60))
    asked[d.add(long, 60)] = (long, 60)
    d.step()
    spec = prompt(C, B, A, heading=(*ANCHOR, *words(40)))
    asked[d.add(spec, 3)] = (spec, 3)
    finish(d, asked)
    assert d.scheduler.span_counts["arranged"] >= 1


def test_a_thousand_short_requests(dry):
    d = dry(blocks=60, max_num_batched_tokens=100, max_num_seqs=8)
    import random

    r = random.Random(0)
    documents = [words(r.randrange(1, 60)) for _ in range(40)]
    asked = {}
    for i in range(1000):
        spec = prompt(*r.sample(documents, r.randrange(0, 4)), question=words(r.randrange(1, 12)))
        spec = spec.bare() if i % 7 == 0 else spec
        tokens = r.randrange(1, 4)
        asked[d.add(spec, tokens, priority=i % 3)] = (spec, tokens)
        if i % 3 == 0:
            d.step()
    finish(d, asked)


def test_salts_share_nothing_but_public_spans(dry):
    d = dry(blocks=100)
    public = PromptSpec((head(*HEAD), span(*A, public=True), span(*B), dep(1, 2)), anchor=3)
    for salt in ("one", "two", "one"):
        d.add(public, 2, salt=salt)
        d.drain()
    computed = [sum(step.values()) for step in d.trace]
    assert sum(computed) < 3 * len(public.physical())
    check_empty(d)
    assert d.scheduler.requests == {} and d.scheduler.span_counts["hits"] == 1 + 2
