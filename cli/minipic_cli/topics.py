"""Real documents that every Python has, and lookup items made from them: for the demo and the benchmarks."""

import random
import re
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Final, NamedTuple

from minipic_sdk import Document, ModelProfile

DEMO_TOPICS: Final = ("del", "assert", "nonlocal", "yield", "return", "while")
DEMO_QUESTION: Final = "What does the nonlocal statement do?"
_LONG_TOPICS: Final = ("compound", "types", "specialnames", "formatstrings", "string-methods", "typesseq", "debugger")
_PROSE: Final = re.compile(r"[A-Z][a-z]")  # how a paragraph of text begins, unlike a grammar or an example


class Item(NamedTuple):
    """A lookup: a quotation from one of the documents, to be continued."""

    question: str
    gold: str


def demo_documents() -> list[Document]:
    """A handful of topics of Python's own help."""
    return [Document(topics[name], name=f"python/{name}") for name in DEMO_TOPICS]


def sized_documents(count: int, tokens: int, profile: ModelProfile, *, skip: int = 0) -> list[Document]:
    """``count`` different pieces of long topics, of ``tokens`` tokens each, to a few.

    Args:
        count: how many.
        tokens: length of each.
        profile: whose tokenizer counts.
        skip: pieces to leave out, so that other calls get other text.
    """
    pieces: list[Document] = []
    for name in _LONG_TOPICS:
        words = re.findall(r"\s*\S+", topics[name])
        at = 0
        while at < len(words):
            length = _words_for(words[at:], tokens, profile)
            if at + length < len(words):
                pieces.append(Document("".join(words[at : at + length]).strip(), name=f"python/{name}/{at}"))
            at += length
        if len(pieces) >= skip + count:
            return pieces[skip : skip + count]
    raise ValueError(f"the help has {len(pieces)} pieces of {tokens} tokens, {skip + count} were asked for")


def lookup_items(
    documents: Sequence[Document], count: int, *, seed: int = 0, shown: int = 6, gold: int = 4
) -> list[Item]:
    """Quotations of ``shown`` words that occur once, each with the ``gold`` words that follow.

    Raises:
        ValueError: the documents are too short for ``count`` items.
    """
    everything = " ".join(" ".join(d.text.split()) for d in documents)
    found: list[Item] = []
    for document in documents:
        paragraphs = (p for p in document.text.split("\n\n") if _PROSE.match(p) and len(p.split()) >= shown + gold)
        for words in (p.split() for p in paragraphs):
            for start in range(0, len(words) - shown - gold + 1, gold):
                quoted = " ".join(words[start : start + shown])
                if everything.count(quoted) == 1:
                    answer = " ".join(words[start + shown : start + shown + gold])
                    found.append(Item(f"Continue the quotation: {quoted}", answer))
    if len(found) < count:
        raise ValueError(f"the documents give {len(found)} items, {count} were asked for")
    return random.Random(seed).sample(found, count)


def _words_for(words: Sequence[str], tokens: int, profile: ModelProfile) -> int:
    """How many of ``words`` make ``tokens`` tokens."""
    low, high = 1, min(len(words), tokens)
    while low < high:
        middle = (low + high + 1) // 2
        if len(profile.tokenizer.encode("".join(words[:middle]).strip())) <= tokens:
            low = middle
        else:
            high = middle - 1
    return low
