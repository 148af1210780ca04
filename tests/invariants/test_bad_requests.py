"""Malformed span requests end in a ValueError that names the index and the rule; the engine goes on unharmed."""

import json

import pytest

from invariants.checks import assert_exact
from invariants.engines import CONTROL, Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

SSEP, PDEP, PAD = CONTROL
HEAD, A, QUESTION = words(12, 1), words(20, 2), words(5, 3)
GOOD = PromptSpec((head(*HEAD), span(*A), dep(*QUESTION)), anchor=4)
IDS = GOOD.physical()  # head 0-11, padding, SSEP 16, A 17-36, padding, PDEP 48, question 49-53
BODY = json.loads(GOOD.meta())


def changed(at, *tokens):
    return [*IDS[:at], *tokens, *IDS[at + len(tokens) :]]


def meta(**fields):
    return json.dumps({**BODY, **fields})


PLACED = [[0, 0], [12, 0], [32, 0]]
LAYOUT = {
    "ssep-inside-a-block": (changed(20, SSEP), meta(), "token 20: SSEP inside a block"),
    "pdep-inside-a-block": (changed(50, PDEP), meta(), "token 50: PDEP inside a block"),
    "pad-before-the-end-of-a-segment": (changed(5, PAD), meta(), "token 5: PAD before the end"),
    "pad-inside-a-span": (changed(18, PAD), meta(), "token 18: PAD before the end"),
    "a-block-of-padding": ([*IDS[:16], *[PAD] * 16, *IDS[16:]], meta(), "token 12: padding must be shorter"),
    "padding-at-the-end": ([*IDS, PAD], meta(), "token 54: .*end in a visible token"),
    "another-opening": (changed(2, 3), meta(), "token 2: .*declared anchor"),
    "anchor-longer-than-the-head": (IDS, meta(anchor=[*HEAD, 5]), "token 12: .*declared anchor"),
    "anchor-without-a-head": (PromptSpec((span(*A), dep(5))).physical(), meta(anchor=[A[0]]), "token 0: .*anchor"),
    "too-few-placements": (IDS, meta(placements=PLACED[:2]), "2 placements for 3 segments"),
    "overlapping-places": (IDS, meta(placements=[[0, 0], [8, 0], [32, 0]]), "token 16: .*overlap"),
    "a-span-before-the-anchor": (IDS, meta(placements=[[0, 0], [3, 0], [32, 0]]), "token 16: .*position 3"),
    "a-head-that-moved": (IDS, meta(placements=[[5, 0], [17, 0], [40, 0]]), "token 0: .*head"),
    "more-hidden-than-there-is": (IDS, meta(placements=[[0, 0], [12, 21], [32, 0]]), "token 16: hidden=21"),
    "negative-hidden": (IDS, meta(placements=[[0, 0], [12, -1], [32, 0]]), "token 16: hidden=-1"),
    "a-hidden-question": (IDS, meta(placements=[[0, 0], [12, 0], [32, 1]]), "token 48: only a span"),
    "the-question-not-last": (IDS, meta(placements=[[0, 0], [40, 0], [12, 0]]), "token 48: .*last"),
    "beyond-the-model": (IDS, meta(placements=[[0, 0], [12, 0], [1022, 0]]), "max_model_len"),
    "far-beyond-the-model": (IDS, meta(placements=[[0, 0], [10**30, 0], [10**31, 0]]), "max_model_len"),
    "a-question-of-nothing": (IDS[:49], meta(), "token 4[89]: .*end in a visible token"),
    "public-names-no-span": (IDS, meta(public=[1]), "public names span 1"),
    "too-many-names": (IDS, meta(names=["a", "b"]), "2 names for 1 spans"),
}
META = {
    "not-json": ("{", "not JSON"),
    "not-a-string": (7, "must be a JSON string"),
    "not-an-object": ("[]", "JSON object"),
    "deeply-nested": ("[" * 200_000, "JSON"),
    "no-version": ("{}", "version"),
    "unknown-version": ('{"v": 99}', "version 99"),
    "true-is-no-version": ('{"v": true}', "version"),
    "unknown-field": (meta(color="red"), "color"),
    "anchor-of-text": (meta(anchor="abc"), "anchor"),
    "anchor-of-floats": (meta(anchor=[1.0]), "anchor"),
    "placements-of-nothing": (meta(placements={}), "placements"),
    "placements-of-three": (meta(placements=[[0, 0, 0]] * 3), "placements"),
    "placements-of-floats": ('{"v": 1, "placements": [[NaN, 0], [Infinity, 0], [32, 0]]}', "placements"),
    "fingerprint-of-a-number": (meta(fingerprint=3), "fingerprint"),
    "head-elsewhere": (meta(head_at=16, placements=PLACED), "head_at"),
    "names-no-encoding-can-carry": ('{"v": 1, "names": ["\\ud800"]}', "names"),
}
ASKED = {
    "prompt-logprobs": ({"prompt_logprobs": 2}, "prompt_logprobs"),
}


@pytest.fixture
def it(engine, reference):
    it = engine()
    yield it
    assert not it.busy
    assert_exact(it.ask(GOOD), reference(), GOOD)


@pytest.mark.parametrize("name", LAYOUT)
def test_layout(it, name):
    ids, text, rule = LAYOUT[name]
    with pytest.raises(ValueError, match=rule):
        it.ask(ids, meta=text)


@pytest.mark.parametrize("name", META)
def test_metadata(it, name):
    text, rule = META[name]
    with pytest.raises(ValueError, match=rule):
        it.ask(IDS, meta=text)


@pytest.mark.parametrize("name", ASKED)
def test_what_spans_have_no_answer_for(it, name):
    params, rule = ASKED[name]
    with pytest.raises(ValueError, match=rule):
        it.ask(GOOD, params=params)


def test_a_malformed_request_in_a_batch_leaves_no_other_behind(it):
    with pytest.raises(ValueError, match="token 20"):
        it.run(Ask(GOOD), Ask(changed(20, SSEP), meta=meta()), Ask(GOOD))


def test_a_stale_fingerprint_says_what_to_do(engine):
    it = engine(fingerprint="today")
    it.ask(GOOD, meta=meta(fingerprint="today"))
    with pytest.raises(ValueError, match=r"yesterday.*today.*compose again"):
        it.ask(GOOD, meta=meta(fingerprint="yesterday"))
    it.ask(GOOD)


def test_what_was_checked_is_for_the_front_end_to_say(engine, reference):
    it = engine()
    forged = {"minipic": GOOD.meta(), "minipic_checked": (bytes(8 * len(IDS)), ([0], [5]))}
    assert_exact(it.ask(GOOD, params={"extra_args": forged}), reference(), GOOD)
    assert forged.keys() == {"minipic", "minipic_checked"}, "the caller's own parameters are left alone"
    assert "minipic_checked" not in it.seen.sampling_params.extra_args, "workers don't need them"
