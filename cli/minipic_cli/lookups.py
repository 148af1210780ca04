"""Lookup questions made from documents: does the model still read what it was given, and how well?

Each item shows a few passages and asks for the rest of one of their sentences, word for word.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from minipic_sdk import Prompt
from minipic_sdk.profile import ModelProfile

PASSAGES: Final = 6  # shown per item
ITEMS_PER_GROUP: Final = 25  # questions over the same passages
ANSWER_WORDS: Final = 6  # scored per item, at most
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
_WORDS: Final = (10, 30)  # of a sentence that is asked for


@dataclass(frozen=True, slots=True)
class Lookup:
    """One item."""

    passages: tuple[str, ...]
    question: str
    opening: str  # how the answer begins; given to the model
    answer: str  # what must come then


@cache
def passages(count: int = 24, words: int = 90) -> tuple[str, ...]:
    """Real English prose that every Python carries: ``pydoc_data.topics``, cut into passages."""
    from pydoc_data.topics import topics

    found: list[str] = []
    for name in sorted(topics, key=lambda n: (n not in _TOPICS, n)):
        paragraphs = [" ".join(p.split()) for p in topics[name].split("\n\n")]
        prose = [p for p in paragraphs if p[:1].isupper() and p.endswith(".") and len(p.split()) > 15]
        text: list[str] = []
        for paragraph in prose:
            text += paragraph.split()
            if len(text) >= words:
                found.append(" ".join(text[: words + words // 3]))
                text = []
            if len(found) == count:
                return tuple(found)
    return tuple(found)


def lookups(texts: Sequence[str], count: int, *, seed: int = 0, shown: int = PASSAGES) -> list[Lookup]:
    """``count`` items over ``texts``, in groups over the same passages; the same seed gives the same items."""
    random_ = random.Random(seed)
    items: list[Lookup] = []
    while len(items) < count:
        group = tuple(random_.sample(list(texts), shown))
        sentences = [s for text in group for s in re.split(r"(?<=[.!?]) ", text) if _fits(s)]
        for sentence in random_.sample(sentences, min(len(sentences), ITEMS_PER_GROUP, count - len(items))):
            words = sentence.split()
            half = len(words) // 2
            opening, answer = " ".join(words[:half]), " " + " ".join(words[half : half + ANSWER_WORDS])
            question = f"Copy from the text the sentence that begins with: {opening}"
            items.append(Lookup(group, question, opening, answer))
    return items


def asked(item: Lookup, profile: ModelProfile, *, layout: str = "anchored") -> tuple[Prompt, list[int]]:
    """The composed prompt of an item, and the tokens of the answer's opening that follow it."""
    prompt = Prompt.compose(list(item.passages), item.question, profile=profile, layout=layout)
    return prompt, profile.encode(item.opening)


def _fits(sentence: str) -> bool:
    return _WORDS[0] <= len(sentence.split()) <= _WORDS[1] and sentence.endswith(".")
