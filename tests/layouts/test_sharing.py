"""Requests of different layouts over the same documents share physical blocks wherever their content allows."""

import pytest

from invariants.checks import assert_exact
from invariants.engines import CONTROL, Ask
from layouts.methods import D, T, epic, spans
from layouts.test_exactness import HEAD, QUESTION, laid_out
from minipic_sdk import Document, ModelProfile, Prompt
from minipic_sdk.layouts import Anchored, Block, Epic
from minipic_sdk.schema import Module, Param, Schema
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

pytestmark = pytest.mark.engine

A, B, C = D(words(40, 10)), D(words(70, 11)), D(words(95, 12))  # 3, 5 and 6 blocks with their SSEP
SPAN_BLOCKS = 3 + 5 + 6
GIVEN = [HEAD, A, B, C, QUESTION]


def blocks(it):
    """Every cached block: its hash and where it lies."""
    cached = it.pool.cached_block_hash_to_block._cache
    return {(key, b.block_id) for key, found in cached.items() for b in _all(found)}


def _all(found):
    return list(found.values()) if isinstance(found, dict) else [found]


def new_blocks(it, sent):
    """Blocks that a request adds to the cache, and its answer."""
    before = blocks(it)
    answer = it.run(sent)[0]
    return len(blocks(it) - before), answer


def links(*lengths):
    """Full blocks of PDEP segments of these lengths, of which the last has no padding."""
    padded = [-(-(n + 1) // 16) for n in lengths[:-1]]
    return sum(padded) + (lengths[-1] + 1) // 16


def test_epic_adds_only_its_links(engine):
    it = engine()
    added, _ = new_blocks(it, laid_out(Anchored(), GIVEN, 1)[0])
    assert added == 2 + SPAN_BLOCKS + links(len(QUESTION.ids)), "head, spans, and nothing full of the question"
    for k in 8, 16, 31:
        sent, _ = laid_out(Epic(k), GIVEN, 1)
        added, answer = new_blocks(it, sent)
        # The first link sees the head alone, so that of k = 31 begins with the block of k = 16.
        known = int(k == 31)
        assert added == links(k, k, k, len(QUESTION.ids)) - known
        assert answer.cached == 16 * (2 + SPAN_BLOCKS + known), "head and spans are one contiguous hit"
        assert [s["status"] for s in answer.spans] == ["hit"] * 3


def test_warm_epic_computes_at_most_k_tokens_a_document(engine, reference):
    it = engine()
    it.run(laid_out(Anchored(), GIVEN, 1)[0])
    sent, _ = laid_out(Epic(32), GIVEN)
    answer = it.run(sent)[0]
    assert isinstance(sent.prompt, list)
    left = sent.prompt[answer.cached :]
    assert sum(t not in CONTROL for t in left) == 3 * 32 + len(QUESTION.ids)
    assert_exact(answer, reference(), epic(GIVEN, 4, 32))


def test_bare_and_anchored_spans_share_nothing_but_the_head(engine):
    it = engine()
    it.run(laid_out(Anchored(), GIVEN, 1)[0])
    added, answer = new_blocks(it, laid_out(Block(), GIVEN, 1)[0])
    assert added == SPAN_BLOCKS
    assert answer.cached == 32
    added, answer = new_blocks(it, laid_out(Epic(8, base="block"), GIVEN, 1)[0])
    assert added == 3
    assert answer.cached == 32 + 16 * SPAN_BLOCKS


def test_a_longer_anchor_is_other_content(engine):
    it = engine()
    it.run(laid_out(Anchored(), GIVEN, 1)[0])
    added, _ = new_blocks(it, laid_out(Anchored(8), GIVEN, 1)[0])
    assert added == SPAN_BLOCKS
    added, _ = new_blocks(it, laid_out(Epic(8, anchor=8), GIVEN, 1)[0])
    assert added == 3


def test_order_repetition_and_new_documents_change_no_key(engine):
    it, keys = engine(), {}
    new = D(words(50, 77))
    for given in (GIVEN, [HEAD, C, B, A, QUESTION], [HEAD, A, C, A, B, QUESTION], [HEAD, new, A, B, C, QUESTION]):
        for layout in (Anchored(), Epic(8)):
            answer = it.run(laid_out(layout, given, 1)[0])[0]
            documents = [g for g in given if isinstance(g, D)]
            for document, status in zip(documents, answer.spans, strict=True):
                assert keys.setdefault(document, status["key"]) == status["key"]
    assert len(set(keys.values())) == 4


def test_all_layouts_in_one_batch_share_in_flight(engine, reference):
    it = engine()
    made = [(Anchored(), spans(GIVEN, 4)), (Epic(8), epic(GIVEN, 4, 8)), (Epic(31), epic(GIVEN, 4, 31))]
    answers = it.run(*(laid_out(layout, GIVEN, 1)[0] for layout, _ in made))
    for answer, (_, spec) in zip(answers, made, strict=True):
        assert_exact(answer, reference(), spec)
    hashes = [key for key, _ in blocks(it)]
    assert len(hashes) == len(set(hashes)) == 2 + SPAN_BLOCKS + 3 + 6, "no block was computed twice"


TEXTS = [
    "Rivers carry sand to the sea. Where they are slow they drop it, and islands grow that no map shows. Fishermen know "
    "them by heart, and pass on to their children where one can land and where one can't.",
    "Bread is older than writing. The first loaves were flat, baked on stones, and eaten while still hot. It took a long "
    "time, and luck, until somebody found out what sour dough does when it is left alone overnight.",
    "Snow lies on the northern slopes until June; shepherds wait for it to go before they drive the flocks up. In some "
    "years they wait in vain, and the hay of the valley has to last for another four weeks.",
]


@pytest.fixture(scope="module")
def profile():
    return ModelProfile.default()


@pytest.fixture
def real(engine, reference, checkpoint, profile):
    """A tiny model with the real vocabulary, and its reference."""
    path = checkpoint("llama", vocab_size=49152)
    return engine(model=path, control_tokens=tuple(profile.control_tokens)), reference("llama", vocab_size=49152)


def pieces(profile, documents, question):
    """The prompt as the reference is told it: tokens between the documents belong to the template."""
    ids = Prompt.compose(documents, question, layout="prefix", profile=profile).token_ids
    mine = [profile.encode(Document.of(d).content) for d in documents]
    middle = [t for d in mine for t in d]
    at = next(i for i in range(len(ids)) if ids[i : i + len(middle)] == middle)
    return [T(tuple(ids[:at])), *(D(tuple(d)) for d in mine), T(tuple(ids[at + len(middle) :]))]


@pytest.mark.parametrize("layout", ["anchored", "block", "epic", "epic on block"])
def test_composed_prompts_of_real_text(real, profile, layout):
    it, ref = real
    control = tuple(profile.control_tokens)
    documents, question = [*TEXTS, TEXTS[0]], "What is older than writing?"
    name, _, base = layout.partition(" on ")
    options = {"base": base, "k": 8} if base else {}
    prompt = Prompt.compose(documents, question, layout=name, profile=profile, **options)
    given, anchor = pieces(profile, documents, question), 0 if "block" in layout else 3
    more = {"control": control}
    spec = epic(given, anchor, 8 if base else 31, **more) if name == "epic" else spans(given, anchor, **more)
    sent = Ask(prompt.token_ids, 4, meta=prompt.vllm_xargs["minipic"])
    cold, warm = it.run(sent)[0], it.run(sent)[0]
    for answer in cold, warm:
        assert_exact(answer, ref, spec)
        assert answer.tokens == ref.greedy(spec, 4, spec.control)
    assert warm.cached == (len(prompt.token_ids) - 1) // 16 * 16
    half = Prompt.compose([TEXTS[2]], "Which one?", layout=name, profile=profile, **options)
    it.reset()
    it.run(Ask(half.token_ids, 1, meta=half.vllm_xargs["minipic"]))
    assert_exact(it.run(sent)[0], ref, spec)


def test_a_composed_schema(real, profile):
    """Modules at their places: a gap where one was left out, room for an argument, a module shared with a document."""
    it, ref = real
    first, second, third = (Module(f"m{i}", text) for i, text in enumerate(TEXTS))
    rest = " days, and take bread for twice as many people with us: one never knows who comes along on the way."
    trip = Module("trip", "We go up for", " ", Param("days", 6), rest)
    schema = Schema("north", first, second, trip, third)
    selected = schema.select("m0", {"trip": {"days": "three"}}, "m2")
    prompt = Prompt.compose(selected, "When?", layout="prompt-cache", profile=profile)
    m0, trip0, days, trip1, m2 = (tuple(profile.encode(d.content)) for d in selected)
    assert profile.tokenizer.decode(days) == " three"
    opening, *_, question = pieces(profile, ["x"], "When?")
    at = len(opening.ids)
    places = [at, at + len(m0) + len(profile.encode(TEXTS[1] + "\n\n"))]
    places += [places[1] + len(trip0)]
    places += [places[2] + 6]
    places += [places[3] + len(trip1)]
    spec = PromptSpec(
        (
            head(*opening.ids),
            span(*m0, logical=places[0]),
            span(*trip0, logical=places[1]),
            span(*trip1, logical=places[3]),
            span(*m2, logical=places[4]),
            dep(*days, logical=places[2]),
            dep(*question.ids, logical=places[4] + len(m2)),
        ),
        anchor=3,
        control=tuple(profile.control_tokens),
    )
    sent = Ask(prompt.token_ids, 4, meta=prompt.vllm_xargs["minipic"])
    for _ in "cold", "warm":
        assert_exact(it.run(sent)[0], ref, spec)
    document = Prompt.compose([Document(TEXTS[2])], "What?", profile=profile)
    answer = it.run(Ask(document.token_ids, 1, meta=document.vllm_xargs["minipic"]))[0]
    assert [s["status"] for s in answer.spans] == ["hit"]
