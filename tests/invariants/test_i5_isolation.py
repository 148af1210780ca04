"""I5: a salt covers every block it was given for; a span crosses salts only when it is marked public."""

import pytest

from invariants.checks import assert_exact
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, LONG = words(37, 1), words(70, 2)  # two full head blocks, one of which holds padding
A, B = words(47, 41), words(31, 42)
SPEC = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*LONG)), anchor=4)
PUBLIC = PromptSpec((head(*HEAD), span(*A, public=True), span(*B), dep(*LONG)), anchor=4)
BLOCKS = (len(SPEC.physical()) - 1) // 16 * 16


def statuses(answer):
    return [s["status"] for s in answer.spans]


def test_the_same_salt_hits_everything(engine, reference):
    it = engine()
    it.ask(SPEC, salt="red")
    answer = it.ask(SPEC, salt="red")
    assert (answer.cached, statuses(answer)) == (BLOCKS, ["hit", "hit"])
    assert_exact(answer, reference(), SPEC)


@pytest.mark.parametrize(
    ("first", "second"),
    [("red", "blue"), ("red", None), (None, "red")],
    ids=["another", "salted-then-none", "none-then-salted"],
)
def test_another_salt_hits_nothing_at_all(engine, reference, first, second):
    it = engine()
    it.ask(SPEC, salt=first)
    answer = it.ask(SPEC, salt=second)
    assert (answer.cached, statuses(answer)) == (0, ["computed", "computed"])
    assert_exact(answer, reference(), SPEC)


def test_a_public_span_is_shared_and_nothing_else(engine, reference):
    it = engine()
    it.ask(PUBLIC, salt="red")
    answer = it.ask(PUBLIC, salt="blue")
    assert statuses(answer) == ["hit", "computed"]
    assert answer.cached == 48, "the public span's three blocks"
    assert_exact(answer, reference(), PUBLIC)


def test_a_public_span_is_not_the_private_one(engine):
    """Marking a span public later must not publish, or reveal, a copy that a tenant stored privately."""
    it = engine()
    it.ask(SPEC, salt="red")
    answer = it.ask(PUBLIC, salt="blue")
    assert (answer.cached, statuses(answer)) == (0, ["computed", "computed"])


def test_a_public_span_serves_requests_without_salt(engine):
    it = engine()
    it.ask(PUBLIC, salt="red")
    assert statuses(it.ask(PUBLIC)) == ["hit", "computed"]
    assert statuses(it.ask(SPEC)) == ["hit", "hit"], "without a salt there is nothing private"


def test_public_follows_its_span_through_rearrangement(engine, reference):
    """Arranging permutes the spans: the mark must not move to a neighbour."""
    it = engine()
    second = PromptSpec((head(*HEAD), span(*A), span(*B, public=True), dep(*LONG)), anchor=4)
    it.ask(PromptSpec((head(*HEAD[:4]), span(*B, public=True)), anchor=4), 1, salt="red")
    mine = it.ask(second, salt="red")  # B is there, so it goes first
    assert statuses(mine) == ["computed", "hit"]
    theirs = it.ask(second, salt="blue")
    assert statuses(theirs) == ["computed", "hit"]
    assert theirs.cached == 32
    assert_exact(theirs, reference(), second)


def test_dependent_blocks_behind_public_spans_alone_still_carry_the_salt(engine):
    it = engine()
    spec = PromptSpec((span(*A, public=True), dep(*LONG)))
    it.ask(spec, salt="red")
    assert it.ask(spec, salt="blue").cached == 48
    assert it.ask(spec, salt="red").cached == (len(spec.physical()) - 1) // 16 * 16


def test_head_blocks_obey_the_salt_in_both_directions(engine):
    it = engine()
    bare = [*HEAD, *words(10, 3)]
    it.ask(SPEC, salt="red")
    assert it.ask(bare).cached == 0
    assert it.ask(bare, salt="red").cached == 32 - 32 % 16, "a long system prompt is cached once for all"
    assert it.ask(bare, salt="blue").cached == 0


@pytest.mark.parametrize("salt", ["blue", None], ids=["another-salt", "no-salt"])
@pytest.mark.parametrize("gone", [False, True], ids=["resident", "evicted"])
def test_reasons_tell_nothing_about_another_tenants_spans(engine, salt, gone):
    """What a status says is the same whether or not another tenant has used the very same span."""
    it = engine()
    seed = 100 + 2 * bool(salt) + gone  # texts that no other test has sent
    secret = PromptSpec((head(*HEAD), span(*words(47, seed)), dep(9)), anchor=4, names=(f"file {seed}",))
    it.ask(secret, salt="red")
    if gone:
        it.reset()
    spied = it.ask(secret, salt=salt).spans[0]
    assert (spied["status"], spied["reason"]) == ("computed", "first seen")


def test_names_are_remembered_per_salt(engine):
    it = engine()
    one = PromptSpec((head(*HEAD), span(*words(47, 60)), dep(9)), anchor=4, names=("handbook",))
    other = PromptSpec((head(*HEAD), span(*words(47, 61)), dep(9)), anchor=4, names=("handbook",))
    it.ask(one, salt="red")
    assert it.ask(other, salt="blue").spans[0]["reason"] == "first seen"
    assert "text changed" in it.ask(other, salt="red").spans[0]["reason"]


def test_another_anchor_is_not_another_text(engine):
    it = engine()
    text = words(47, 62)
    for anchor in (4, 8):
        spec = PromptSpec((head(*HEAD), span(*text), dep(9)), anchor=anchor, names=("handbook",))
        assert it.ask(spec, salt="green").spans[0]["reason"] == "first seen"


def test_lookups_obey_the_salt(engine):
    """What `POST /v1/minipic/spans/lookup` asks the scheduler."""
    it = engine()
    it.ask(PUBLIC, salt="red")

    def resident(piece, salt):
        ids = PromptSpec((piece,)).physical()
        return it.scheduler.minipic("lookup", [{"ids": ids, "anchor": list(HEAD[:4]), "salt": salt}])[0][2]

    assert [resident(span(*A), salt) for salt in ("red", "blue", None)] == [0, 0, 3]
    assert [resident(span(*B), salt) for salt in ("red", "blue", None)] == [2, 0, 0]
    assert (
        it.scheduler.minipic("lookup", [{"ids": PromptSpec((span(*B),)).physical(), "anchor": [], "salt": "red"}])[0][2]
        == 0
    ), "another anchor is another span"
