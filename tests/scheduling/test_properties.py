"""Any order of arrivals, aborts, evictions, preemptions and resets: right outputs, nothing twice, nothing left."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference.prompts import PromptSpec, dep, head, span
from scheduling.dry import EmptyConnector, answer

R = random.Random(4)


def words(n: int) -> tuple[int, ...]:
    return tuple(R.randrange(1, 500) for _ in range(n))


ANCHOR = words(3)
HEADS = [(*ANCHOR, *words(17)), (*ANCHOR, *words(13)), (*ANCHOR, *words(5))]
DOCUMENTS = [words(n) for n in (5, 15, 16, 31, 40, 47, 63, 64, 100, 150)]
QUESTIONS = [words(n) for n in (1, 9, 15, 20, 33)]
WORST = 480  # physical tokens of the longest prompt made here, behind max_model_len=512


@dataclass(frozen=True)
class Add:
    """A request arrives."""

    head: int
    documents: tuple[int, ...]
    question: int | None  # None: spans alone, as warming sends them
    history: bool
    tokens: int
    salt: str | None
    priority: int
    plain: bool
    reads: bool

    def prompt(self) -> PromptSpec | list[int]:
        pieces = [head(*HEADS[self.head])]
        used = 48
        for d in self.documents:
            used += len(DOCUMENTS[d]) // 16 * 16 + 32
            if used < WORST - 80:
                pieces.append(span(*DOCUMENTS[d]))
        if self.history and len(pieces) > 1:
            pieces.insert(2, dep(*QUESTIONS[1]))
        if self.question is not None:
            pieces.append(dep(*QUESTIONS[self.question]))
        elif pieces[-1].kind == "head":
            pieces.append(span(*DOCUMENTS[4]))
        spec = PromptSpec(tuple(pieces), anchor=len(ANCHOR))
        return spec.bare() if self.plain else spec


adds = st.builds(
    Add,
    head=st.integers(0, 2),
    documents=st.lists(st.integers(0, len(DOCUMENTS) - 1), max_size=6).map(tuple),
    question=st.one_of(st.none(), *[st.integers(0, len(QUESTIONS) - 1)] * 4),
    history=st.booleans(),
    tokens=st.integers(1, 12),
    salt=st.sampled_from([None, None, None, "s"]),
    priority=st.integers(0, 2),
    plain=st.sampled_from([False, False, False, True]),
    reads=st.sampled_from([True] * 8 + [False]),
)
moves = st.lists(
    st.one_of(
        adds,
        adds,
        st.integers(1, 6),  # steps
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("reset"), st.booleans()),
    ),
    min_size=1,
    max_size=25,
)
FAST = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def play(d, script, *, reset=True):
    """Carry out a script, wait for the end, check everything; the scheduler's counters."""
    asked: dict[str, tuple[PromptSpec | list[int], int]] = {}
    for move in script:
        if isinstance(move, Add):
            prompt = move.prompt()
            last = isinstance(prompt, PromptSpec) and prompt.pieces[-1].kind == "span"
            tokens = 1 if last else move.tokens
            options = {} if move.reads else {"skip_reading_prefix_cache": True}
            asked[d.add(prompt, tokens, salt=move.salt, priority=move.priority, **options)] = (prompt, tokens)
        elif isinstance(move, int):
            for _ in range(move):
                d.step()
        elif move[0] == "abort" and asked:
            d.abort(list(asked)[move[1] % len(asked)])
        elif move[0] == "reset" and reset:
            d.scheduler.reset_prefix_cache(reset_running_requests=move[1])
    d.drain()
    for request_id, (prompt, tokens) in asked.items():
        must = answer(prompt, tokens) if not _ends_in_span(prompt) else d.outputs[request_id][:tokens]
        got = d.outputs[request_id]
        if d.finished[request_id] == "abort":
            assert got == must[: len(got)]
        else:
            assert got == must and len(got) == tokens
    check_empty(d)
    return d.scheduler.span_counts


def check_empty(d):
    """Nothing is held by anyone."""
    scheduler = d.scheduler
    assert set(d.finished) == set(d.outputs), "an output is missing"
    assert d.pool.get_num_free_blocks() == d.blocks - 1, "blocks are still held"
    assert not scheduler.requests and not scheduler._wanted
    assert not any(scheduler._in_flight(key) for key in list(scheduler._filling))
    counts = scheduler.span_counts
    assert counts["computed_twice"] == 0
    excused = counts["in_place"] + counts["last_block_again"] + counts["repeated_in_prompt"]
    assert d.twice <= excused, f"{d.twice} spans published twice, {excused} accounted for"


def _ends_in_span(prompt):
    return isinstance(prompt, PromptSpec) and prompt.pieces[-1].kind == "span"


ENGINES = {
    "plain": {},
    "asynchronous": {"cls": "AsyncSpanScheduler", "lag": 1},
    "runner V2": {"v2": True, "cls": "AsyncSpanScheduler", "lag": 1},
    "priority": {"scheduling_policy": "priority"},
    "priority, asynchronous, V2": {"scheduling_policy": "priority", "v2": True, "cls": "AsyncSpanScheduler", "lag": 1},
    "chunks capped": {"long_prefill_token_threshold": 24, "max_num_batched_tokens": 100},
    "roomy": {"blocks": 200, "max_num_batched_tokens": 400},
    "tiny steps": {"max_num_batched_tokens": 16, "blocks": 36},
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
@FAST
@given(script=moves)
def test_any_schedule(dry, options, script):
    play(dry(**{"blocks": 38, **options}), script)


@pytest.mark.parametrize("options", [{}, {"v2": True, "cls": "AsyncSpanScheduler", "lag": 1}], ids=["plain", "V2"])
@FAST
@given(script=moves)
def test_any_schedule_beside_a_connector(dry, options, script):
    """A prompt is arranged once there, whatever is evicted after that."""
    d = dry(blocks=38, **options)
    d.scheduler.connector = EmptyConnector()
    play(d, script)
