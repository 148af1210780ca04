"""Documents and lookup questions made from Python's own help."""

import pytest

from minipic_cli.lookups import gold, lookups, orders, passages
from minipic_sdk import ModelProfile, Prompt


def test_passages_are_prose_of_different_topics() -> None:
    found = passages()
    assert len({d.name for d in found}) == len(found) == 6
    assert all(80 <= len(d.text.split()) <= 110 for d in found)
    assert all("\n" not in d.text for d in found)


def test_the_same_seed_gives_the_same_items() -> None:
    documents = passages()
    assert lookups(documents, 104) == lookups(documents, 104)
    assert lookups(documents, 104) != lookups(documents, 104, seed=1)


def test_every_answer_follows_its_opening_in_one_document() -> None:
    documents = passages()
    items = lookups(documents, 104)
    assert len(set(items)) == 104
    for item in items:
        assert sum(item.opening + item.answer in d.text for d in documents) == 1
        named = item.question.split('"', 1)[1].rsplit('"', 1)[0]
        assert item.opening.startswith(named)


def test_more_items_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="10000 were asked for"):
        lookups(passages(), 10_000)


def test_gold_follows_the_prompt_and_the_opening() -> None:
    profile = ModelProfile.default()
    documents = passages()
    item = lookups(documents, 1)[0]
    prompt = Prompt.compose(documents, item.question, profile=profile)
    plain, spans = gold(item, prompt, plain=True), gold(item, prompt, plain=False)
    assert plain.answer == spans.answer
    assert profile.tokenizer.decode([*plain.token_ids, *plain.answer]).endswith(
        "<|im_start|>assistant\n" + item.opening + item.answer
    )
    assert list(spans.token_ids)[: len(prompt.token_ids)] == prompt.token_ids


def test_orders_are_different_and_the_same_every_time() -> None:
    documents = passages()
    found = orders(documents, 3)
    assert found == orders(documents, 3)
    assert len({tuple(d.name for d in order) for order in found}) == 3
    assert all(set(order) == set(documents) for order in found)
