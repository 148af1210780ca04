"""Plain requests are scheduled exactly as stock vLLM schedules them: same steps, same tokens, same blocks."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.test_directed import A, B, prompt
from scheduling.test_properties import FAST, words

TEXTS = [words(n) for n in (3, 16, 33, 64, 90, 150, 200)]
arrivals = st.lists(
    st.tuples(
        st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=2),  # texts: shared prefixes among them
        st.integers(1, 20),  # tokens
        st.integers(0, 2),  # priority
        st.integers(0, 3),  # steps before the next one
        st.booleans(),  # aborted by then
    ),
    min_size=1,
    max_size=12,
)


def play(d, script):
    """Every step's scheduled tokens, and every request's blocks."""
    blocks = []
    for texts, tokens, priority, steps, aborted in script:
        request_id = d.add([t for i in texts for t in TEXTS[i]], tokens, priority=priority)
        for _ in range(steps):
            d.step()
            blocks.append({r: v.blocks[:] for r, v in d.runner.views.items()})
        if aborted:
            d.abort(request_id)
    d.drain()
    return d.trace, blocks, d.outputs


@pytest.mark.parametrize(
    "options", [{}, {"scheduling_policy": "priority"}, {"long_prefill_token_threshold": 24, "v2": True}]
)
@FAST
@given(script=arrivals)
def test_plain_requests_are_scheduled_as_by_stock(dry, options, script):
    ours = play(dry(blocks=38, **options), script)
    stock = play(dry(blocks=38, stock=True, **options), script)
    assert ours == stock


def test_what_waiting_requests_want_is_evicted_last(dry):
    """A and B are the oldest in the cache; of these, only A is asked for by a request that waits."""
    d = dry(blocks=60, max_num_seqs=1, max_num_batched_tokens=400)
    for spec in (prompt(A, question=words(5)), prompt(B, question=words(5))):
        d.add(spec, 1)
        d.drain()
    r = random.Random(1)
    for _ in range(4):  # far more than the cache holds
        d.add(prompt(words(r.randrange(200, 300)), words(100)), 1)
    wanted = prompt(A)
    d.add(wanted, 1)
    d.drain()
    steps = [sum(step.values()) for step in d.trace if step]
    assert steps[-1] <= 4, "A was evicted although a request waited for it"
