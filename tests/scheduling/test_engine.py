"""The same on the real CPU engine with a tiny model: step by step, with aborts and preemptions, against lone cold runs."""

import random

import pytest

from invariants.checks import assert_same
from invariants.engines import Answer, Ask, Engine
from reference.prompts import PromptSpec
from scheduling.test_directed import A, B, C, prompt
from scheduling.test_properties import words

DOCUMENTS = [A, B, C, words(15), words(64), words(100)]
OPTIONS = {
    "small steps": {"max_num_batched_tokens": 64},
    "priority": {"max_num_batched_tokens": 96, "scheduling_policy": "priority", "long_prefill_token_threshold": 48},
    "not asynchronous": {"max_num_batched_tokens": 64, "async_scheduling": False},
}


@pytest.fixture(scope="module", params=OPTIONS.values(), ids=OPTIONS)
def engine(request, tiny):
    made = Engine(tiny, num_gpu_blocks_override=44, max_model_len=512, max_num_seqs=6, **request.param)
    yield made
    made.close()


def drive(engine: Engine, asks: list[Ask], r: random.Random) -> dict[int, Answer]:
    """Random arrivals and aborts over single steps; the answers of those that were not aborted."""
    llm, waiting = engine.llm.llm_engine, list(enumerate(asks))
    answers: dict[int, Answer] = {}
    alive: dict[str, int] = {}
    for _ in range(5000):
        while waiting and r.random() < 0.6:
            i, ask = waiting.pop(0)
            inputs, params = ask.engine_input()
            alive[llm.add_request(f"q{i}", inputs, params, priority=r.randrange(3))] = i
        if alive and r.random() < 0.05:
            gone = r.choice(list(alive))
            llm.abort_request([gone], internal=True)
            del alive[gone]
        for out in llm.step():
            if out.finished:
                mine = next(k for k, i in alive.items() if f"q{i}" == out.request_id)
                index = alive.pop(mine)
                assert index not in answers, "an output came twice"
                answers[index] = Answer.of(out)
        if not waiting and not alive:
            break
    assert not alive, f"{alive} wait for ever"
    while llm.has_unfinished_requests():
        llm.step()
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_any_order_gives_what_lone_cold_runs_give(engine, seed):
    r = random.Random(seed)
    specs: list[PromptSpec] = []
    for _ in range(14):
        spec = prompt(*r.choices(DOCUMENTS, k=r.randrange(1, 4)), question=words(r.randrange(2, 30)))
        specs.append(spec)
    asks = [Ask(spec if i % 5 else spec.bare(), r.randrange(1, 40)) for i, spec in enumerate(specs)]
    engine.reset()
    before = dict(engine.scheduler.span_counts)
    answers = drive(engine, asks, r)
    assert engine.pool.get_num_free_blocks() == 43 and not engine.busy
    assert engine.scheduler.span_counts["computed_twice"] == before["computed_twice"]
    assert len(answers) >= 4
    for i, got in answers.items():
        engine.reset()
        assert_same(got, engine.run(asks[i])[0])


def test_pressure_was_real(engine):
    """The runs above met what they are for."""
    assert engine.met["preemption"] and engine.met["chunk ends inside a span"] and engine.met["mixed batch"]


def test_siblings_share_and_tell_the_same(engine):
    """n > 1: one prompt, several requests in the engine."""
    engine.reset()
    spec = prompt(words(30), words(40))
    many = engine.run(Ask(spec, 5, params={"n": 3, "temperature": 1e-3}))[0]
    assert [list(o.token_ids) for o in many.outputs] == [many.tokens] * 3
    # The first of them computes the spans; for the others they are on their way, not evicted.
    assert [s["reason"] for s in many.spans] in (["first seen"] * 2, ["prefetch still running"] * 2)
