"""Real documents that every Python has, and lookup questions made from them.

Each item asks for a sentence of the documents, word for word, and gives its beginning; the score is the log probability
of the words that follow (see scoring.py), which moves long before an answer visibly breaks.
"""

import random
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from minipic_cli.scoring import Gold
from minipic_sdk import Document, ModelProfile, Prompt

_TOPICS: Final = (
    "assert",
    "class",
    "context-managers",
    "dynamic-features",
    "exceptions",
    "execmodel",
    "for",
    "function",
)
_SENTENCE: Final = (10, 40)  # words of a sentence that is asked for
_NAMED: Final = 5  # words that say which sentence is meant
_ANSWER: Final = 3  # words scored

Scorer = Callable[[Sequence[Gold], Prompt], list[list[float]]]
"""Log probabilities of every answer's tokens; the prompt is one of theirs."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One item."""

    question: str
    opening: str  # how the answer begins; given to the model
    answer: str  # what must come then


@cache
def passages(count: int = 6, words: int = 80) -> tuple[Document, ...]:
    """Passages of English prose from Python's own help (``pydoc_data.topics``), at most one of a topic."""
    from pydoc_data.topics import topics

    found: list[Document] = []
    for name in sorted(topics, key=lambda n: (n not in _TOPICS, n)):
        paragraphs = (" ".join(p.split()) for p in topics[name].split("\n\n"))
        text: list[str] = []
        for paragraph in paragraphs:
            if paragraph[:1].isupper() and paragraph.endswith(".") and len(text) < words:
                text += paragraph.split()
        if len(text) >= words:
            found.append(Document(" ".join(text[: words + words // 3]), name=name))
        if len(found) == count:
            return tuple(found)
    raise ValueError(f"there are {len(found)} passages of {words} words, {count} were asked for")


def lookups(documents: Sequence[Document], count: int, *, seed: int = 0) -> list[Lookup]:
    """``count`` items over ``documents``; the same seed gives the same items.

    Raises:
        ValueError: the documents don't have so many.
    """
    everything = " ".join(d.text for d in documents)
    items = [item for d in documents for item in _of_text(d.text, everything)]
    if len(items) < count:
        raise ValueError(f"the documents give {len(items)} items, {count} were asked for")
    return random.Random(seed).sample(items, count)


def orders(documents: Sequence[Document], count: int, *, seed: int = 7) -> list[list[Document]]:
    """``count`` shuffles of the documents; the same seed gives the same ones."""
    shuffle = random.Random(seed)
    return [shuffle.sample(documents, len(documents)) for _ in range(count)]


def gold(item: Lookup, prompt: Prompt, *, plain: bool) -> Gold:
    """What to score: the prompt's tokens, physical or bare, with the answer's opening, and the answer.

    Args:
        item: the prompt's.
        prompt: composed with the item's question.
        plain: bare tokens, for stock vLLM.
    """
    ids = prompt.plain_token_ids if plain else prompt.token_ids
    return Gold([*ids, *prompt.profile.encode(item.opening)], prompt.profile.encode(item.answer))


def compare(
    profile: ModelProfile, shuffled: Sequence[Sequence[Document]], items: int, plain: Scorer, spans: Scorer
) -> tuple[list[float], list[float]]:
    """Mean log probability per token of every true answer, from bare tokens and with spans; the orders take turns.

    Args:
        profile: to compose with.
        shuffled: orders of the documents.
        items: lookup questions, over all orders.
        plain: scores bare tokens.
        spans: scores prompts with spans.
    """
    asked = lookups(passages(), items)
    found: tuple[list[float], list[float]] = [], []
    for number, order in enumerate(shuffled):
        mine = asked[number :: len(shuffled)]
        prompts = [Prompt.compose(order, item.question, profile=profile) for item in mine]
        if not prompts:
            continue
        for scorer, is_plain, scores in ((plain, True, found[0]), (spans, False, found[1])):
            golds = [gold(item, prompt, plain=is_plain) for item, prompt in zip(mine, prompts, strict=True)]
            # One prompt's metadata serve all: they are about the documents.
            scores += (statistics.fmean(tokens) for tokens in scorer(golds, prompts[0]))
    return found


def _of_text(text: str, everything: str) -> Iterator[Lookup]:
    for sentence in re.split(r"(?<=[.!?]) ", text):
        words = sentence.split()
        named = " ".join(words[:_NAMED])
        if not _SENTENCE[0] <= len(words) <= _SENTENCE[1] or everything.count(named) != 1:
            continue
        question = f'Copy from the text the sentence that begins with "{named}".'
        for cut in range(_NAMED, len(words) - _ANSWER + 1, _ANSWER):
            yield Lookup(question, " ".join(words[:cut]), " " + " ".join(words[cut : cut + _ANSWER]))
