"""SmolLM2's real weights in bfloat16, as users serve them: as near full precision as plain prompts are, warm or cold."""

import random

import pytest

from gpu.test_engine import GRAPHS, gaps
from invariants.engines import Ask
from invariants.test_i1_purity import stored
from invariants.test_real_model import OPENING, PASSAGES, QUESTION
from reference.prompts import Control, PromptSpec, dep, head, span


@pytest.fixture
def asked(engine, smol):
    """The engine, the float32 reference, and 64 prompts of one to three passages in any order."""
    path, tokenizer, reference = smol
    it = engine(model=path, control_tokens=None, dtype="bfloat16", **GRAPHS)
    control = Control(*it.scheduler.span_config.control)
    opening, *documents = (tuple(tokenizer.encode(t).ids) for t in (OPENING, *PASSAGES))
    rng = random.Random(0)
    prompts = []
    for i in range(64):
        chosen = rng.sample(documents, rng.randint(1, 3))
        question = tuple(tokenizer.encode(f"{i}: {QUESTION}").ids)
        prompts.append(PromptSpec((head(*opening), *(span(*d) for d in chosen), dep(*question)), 3, control=control))
    return it, reference, prompts


def test_spans_are_as_near_the_reference_as_plain_prompts(asked):
    it, reference, prompts = asked
    it.poison()
    plain = [p.bare() for p in prompts]
    far = gaps(it.run(*(Ask(p) for p in plain)), reference, plain)
    near = gaps(it.run(*(Ask(p) for p in prompts)), reference, prompts)
    warm = it.run(*(Ask(p) for p in prompts))
    assert all(s["status"] == "hit" for answer in warm for s in answer.spans)
    again = gaps(warm, reference, prompts)
    print(f"mean gap: spans {sum(near) / 64:.4f}, warm {sum(again) / 64:.4f}, plain {sum(far) / 64:.4f}")
    assert max(sum(near), sum(again)) < 1.25 * sum(far)
    assert max(*near, *again) < 2 * max(far)


def test_what_is_cached_depends_on_nothing_around_it(asked):
    """I1: a passage's keys and values are the same up to rounding, whatever stood before it when they were computed."""
    it, _, prompts = asked
    opening, question = prompts[0].pieces[0], prompts[0].pieces[-1]
    passages = list({p.tokens: p for spec in prompts for p in spec.pieces[1:-1]}.values())
    seen = []
    for order in ([0], [1, 0], [2, 1, 0], [0, 2]):
        it.poison()
        pieces = (opening, *(passages[i] for i in order), question)
        it.ask(PromptSpec(pieces, 3, control=prompts[0].control), 1)
        seen.append(stored(it, passages[0].tokens, prompts[0].control).float())
    for other in seen[1:]:
        assert (other - seen[0]).norm() < 0.02 * seen[0].norm()
