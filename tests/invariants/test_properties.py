"""Random prompts in random company: whatever the scheduler does with them, the answer is the reference's.

The engines: a roomy one, one whose chunks end anywhere, and two whose cache is so small that requests are preempted
and spans evicted, the last one also to make room for others of a higher priority, in the middle of a step. The last
test asserts that all of this really happened.
"""

import os
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from invariants.checks import assert_exact
from invariants.engines import Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

# A small stock of documents, so that prompts share them: empty, tiny, ending on block boundaries, and longer.
LENGTHS = (0, 1, 3, 14, 15, 16, 31, 40, 47, 70)
DOCUMENTS = [words(n, 100 + n) for n in LENGTHS]
HEADS = [words(4, 200), words(4, 200) + words(12, 201), words(4, 200) + words(29, 202), ()]
TINY = {"num_gpu_blocks_override": 26, "max_model_len": 384, "max_num_batched_tokens": 96, "max_num_seqs": 6}
ENGINES = {
    "roomy": {"async_scheduling": True},
    "chunks": {"max_num_batched_tokens": 21, "max_num_seqs": 6, "async_scheduling": False},
    "tiny-cache": TINY,
    "tiny-cache-priorities": {**TINY, "scheduling_policy": "priority", "max_num_batched_tokens": 40},
}
MET: Counter[str] = Counter()
PROPERTY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking restarts a dead engine hundreds of times: only on demand.
    phases=[Phase.generate] + [Phase.shrink] * ("SHRINK" in os.environ),
    print_blob=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def prompts(draw):
    """A head, pieces in any order, repeated or not, and a question; or a plain prompt; or spans to warm."""
    opening = draw(st.sampled_from(HEADS))
    if draw(st.integers(0, 5)) == 0:
        return [*words(4, 200), *words(draw(st.integers(1, 60)), draw(st.integers(0, 3)))]
    anchor = draw(st.sampled_from([n for n in (0, 1, 4, len(opening)) if n <= len(opening)]))
    documents = draw(st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=5))
    pieces = [head(*opening)] if opening else []
    for tokens in documents:
        if sum(len(p.tokens) // 16 + 1 for p in pieces) > 13:
            break  # a prompt must fit the tiny cache, with what it generates
        pieces.append(dep(*tokens) if draw(st.integers(0, 6)) == 0 else span(*tokens))
    if draw(st.integers(0, 7)):
        pieces.append(dep(*words(draw(st.integers(1, 20)), draw(st.integers(0, 9)))))
    else:  # spans alone, as a client warms them
        pieces = [p for p in pieces if p.kind != "dependent"]
        pieces += [span(*DOCUMENTS[-1])] if all(p.kind == "head" for p in pieces) else []
    spec = PromptSpec(tuple(pieces), anchor=anchor)
    return draw(placed(spec)) if draw(st.integers(0, 3)) == 0 else spec


@st.composite
def placed(draw, spec):
    """The same prompt with gaps between its pieces, spans shuffled logically and parts of them hidden."""
    if spec.pieces[-1].kind != "dependent":
        return spec
    first, last = int(spec.pieces[0].kind == "head"), len(spec.pieces) - 1
    free = list(range(first, last))
    if any(spec.pieces[i].kind == "dependent" for i in free):
        return spec  # all that a dependent piece sees must come physically before it
    starts, at = {}, len(spec.pieces[0].tokens) if first else 0
    for i in draw(st.permutations(free)):
        starts[i] = at = at + draw(st.integers(0, 9))
        at += len(spec.pieces[i].tokens)
    pieces = list(spec.pieces)
    for i in free:
        hide = draw(st.integers(0, len(pieces[i].tokens))) if draw(st.booleans()) else 0
        pieces[i] = replace(pieces[i], logical=max(starts[i], spec.anchor), hidden=hide)
    pieces[last] = replace(pieces[last], logical=at + draw(st.integers(0, 9)))
    return replace(spec, pieces=tuple(pieces))


def play(it, reference, batches, tokens):
    """Send the batches one after the other and hold every answer against the reference."""
    policy = it.scheduler.policy.value
    for batch in batches:
        asks = [
            Ask(
                p,
                tokens if isinstance(p, list) or p.pieces[-1].kind == "dependent" else 1,
                # Later requests go first, so that they push out earlier ones.
                priority=-i if policy == "priority" else 0,
                salt=(None, None, "red")[i % 3],
            )
            for i, p in enumerate(batch)
        ]
        for ask, answer in zip(asks, it.run(*asks), strict=True):
            if isinstance(ask.prompt, list) or ask.prompt.pieces[-1].kind == "dependent":
                assert_exact(answer, reference, ask.prompt)
            note(answer)


def note(answer):
    """What this answer met, from its spans' statuses."""
    status = [s["status"] for s in answer.spans]
    MET["half-warm"] += {"hit", "computed"} <= set(status)
    for i, s in enumerate(answer.spans):
        gone = s["reason"] in ("evicted", "partly evicted")
        MET["eviction of a middle span"] += gone and "hit" in status[:i] and "hit" in status[i + 1 :]
    MET["all hit"] += bool(status) and set(status) == {"hit"}


BATCHES = st.lists(st.lists(prompts(), min_size=1, max_size=6), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ENGINES)
def test_random_batches(engine, reference, name):
    it, ref = engine(**ENGINES[name]), reference()

    @PROPERTY
    @seed(1)
    @given(BATCHES, st.integers(1, 60))
    def check(batches, tokens):
        it.reset()
        play(it, ref, batches, tokens)

    check()
    MET.update(it.met)


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_prompt_cold_warm_and_half_warm(engine, reference, name):
    it, ref = engine(**ENGINES[name]), reference()

    @PROPERTY
    @seed(2)
    @given(prompts(), st.data())
    def check(prompt, data):
        it.reset()
        play(it, ref, [[prompt], [prompt]], 5)
        if isinstance(prompt, PromptSpec):
            it.reset()
            opening = [p for p in prompt.pieces if p.kind == "head"]
            spans = [span(*p.tokens) for p in prompt.pieces if p.kind == "span"]
            some = data.draw(st.lists(st.sampled_from(spans), max_size=3)) if spans else []
            warmed = [PromptSpec((*opening, s), anchor=prompt.anchor) for s in some]
            play(it, ref, [warmed, [prompt]] if warmed else [[prompt]], 5)

    check()
    MET.update(it.met)


def test_a_cache_that_churns_without_reset(engine, reference):
    """Prompts over the same documents follow one another while the small cache keeps evicting."""
    it, ref = engine(**ENGINES["tiny-cache"]), reference()

    @PROPERTY
    @seed(3)
    @given(BATCHES)
    def check(batches):
        play(it, ref, batches, 12)

    check()
    MET.update(it.met)


def test_the_suite_met_what_it_is_for():
    if not MET:
        pytest.skip("no property test ran before it")
    for event in (
        "preemption",
        "eviction of a middle span",
        "chunk ends inside a span",
        "half-warm",
        "all hit",
        "mixed batch",
    ):
        assert MET[event] > 3, f"the property tests met {event!r} {MET[event]} times: {dict(MET)}"
