"""Questions about real passages, the same for the same seed: what the text says goes in, so answers can be checked.

Passages are prose of Python's reference manual (``pydoc_data.topics``, in the standard library) and, where the package
``fanoutqa`` is installed, facts of its questions. Nothing of them is stored here.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from minipic_sdk.documents import Document
from minipic_sdk.schema import Module, Schema, Union

Kind = Literal["continue", "cloze", "passage", "fact"]

SHELVES, ALTERNATIVES = 8, 3  # of the schema: unions, and passages in each
DOCUMENTS: Final = 4  # in a prompt
OPENING, ENDING = 6, 8  # words of a sentence that are shown, and that are asked for
_CITED: Final = re.compile(r'["`*:=<>_\\]')


class Passage(NamedTuple):
    """A piece of real text."""

    heading: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()  # questions that it answers, and the answers


@dataclass(frozen=True)
class Item:
    """A question about some passages."""

    kind: Kind
    documents: Sequence[Document]  # modules of a schema, in its order
    question: str
    begun: str  # how the answer begins, for every method; small models don't get to the point by themselves
    gold: str  # how it goes on


def build(count: int, seed: int = 0) -> list[Item]:
    """``count`` questions, kinds in turn."""
    source = random.Random(seed)
    makers: dict[Kind, Callable[[random.Random, list[Passage], Passage], tuple[str, str, str] | None]]
    makers = {"continue": _continue, "cloze": _cloze, "passage": _passage_of}
    shelves = _shelved(_manual(), source)
    kinds: list[tuple[Kind, list[list[Passage]]]] = [(kind, shelves) for kind in makers]
    if facts := _facts():
        kinds.append(("fact", _shelved(facts, source)))
        makers["fact"] = _fact
    schemas = {id(s): _schema(s) for _, s in kinds}
    items: list[Item] = []
    while len(items) < count:
        kind, stock = kinds[len(items) % len(kinds)]
        rows = sorted(source.sample(range(SHELVES), DOCUMENTS))
        chosen = [(row, source.randrange(ALTERNATIVES)) for row in rows]
        passages = [stock[row][i] for row, i in chosen]
        if len({p.heading for p in passages}) < DOCUMENTS:
            continue
        made = makers[kind](source, passages, source.choice(passages))
        if made is not None:
            documents = schemas[id(stock)].select(*(f"p{row}-{i}" for row, i in chosen))
            items.append(Item(kind, documents, *made))
    return items


def _schema(shelves: list[list[Passage]]) -> Schema:
    unions = [
        Union(*(Module(f"p{row}-{i}", f"{p.heading}\n{p.text}") for i, p in enumerate(shelf)))
        for row, shelf in enumerate(shelves)
    ]
    return Schema("passages", *unions)


def _shelved(passages: list[Passage], source: random.Random) -> list[list[Passage]]:
    picked = source.sample(passages, SHELVES * ALTERNATIVES)
    return [picked[i::SHELVES] for i in range(SHELVES)]


def _manual() -> list[Passage]:
    from pydoc_data.topics import topics

    found: list[Passage] = []
    for text in topics.values():
        paragraphs = re.split(r"\n\s*\n", text)
        heading = paragraphs[0].split("\n")[0].strip()
        if _CITED.search(heading):
            continue
        for paragraph in paragraphs[1:]:
            prose = " ".join(paragraph.split())
            if paragraph[0].isspace() or not 40 <= len(prose.split()) <= 95 or len(_CITED.findall(prose)) > 6:
                continue
            if prose[0].isupper() and prose[-1] == ".":
                found.append(Passage(heading, prose))
    return sorted(set(found))


def _facts() -> list[Passage]:
    """The facts that one multi-hop question needs, as one passage. Empty without the package."""
    spec = find_spec("fanoutqa")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "fanout-final-dev.json"
        if path.is_file():
            asked: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            passages = [_passage(q) for q in asked]
            return [p for p in passages if 4 <= len(p.facts) <= 7]
    return []


def _passage(asked: dict[str, Any]) -> Passage:
    facts = tuple(
        (step["question"].strip(), str(step["answer"]).strip())
        for step in asked["decomposition"]
        if isinstance(step["answer"], str | int | float)
        and not isinstance(step["answer"], bool)
        and len(str(step["answer"]).split()) <= 6
    )
    return Passage(asked["question"].strip(), "\n".join(f"{q} {a}." for q, a in facts), facts)


def _sentences(text: str) -> list[list[str]]:
    return [s.split() for s in re.split(r"(?<=[.!?]) (?=[A-Z])", text)]


def _continue(source: random.Random, passages: list[Passage], target: Passage) -> tuple[str, str, str] | None:
    long = [s for s in _sentences(target.text) if len(s) >= OPENING + ENDING]
    if not long:
        return None
    words = source.choice(long)
    shown, gold = " ".join(words[:OPENING]), " ".join(words[OPENING : OPENING + ENDING])
    if sum(p.text.count(shown) for p in passages) != 1:
        return None
    return f'Copy from the text above the sentence that begins with "{shown}".', shown, f" {gold}"


def _cloze(source: random.Random, passages: list[Passage], target: Passage) -> tuple[str, str, str] | None:
    everything = " ".join(p.text for p in passages)
    places = [
        (words, i)
        for words in _sentences(target.text)
        for i, word in enumerate(words[3:], 3)
        if word.isalpha() and word.islower() and len(word) > 4 and len(re.findall(rf"\b{word}\b", everything)) == 1
    ]
    if not places:
        return None
    words, i = source.choice(places)
    sentence = " ".join([*words[:i], "____", *words[i + 1 :]])
    question = f'Which word of the text above is missing here?\n"{sentence}"'
    return question, 'The missing word is "', words[i]


def _passage_of(_source: random.Random, _passages: list[Passage], target: Passage) -> tuple[str, str, str] | None:
    gold = " ".join(target.text.split()[:ENDING])
    return f'What does the text above say under "{target.heading}"?', f"{target.heading}\n", gold


def _fact(source: random.Random, _passages: list[Passage], target: Passage) -> tuple[str, str, str] | None:
    question, answer = source.choice(target.facts)
    return f"Answer from the text above: {question}", question, f" {answer}"
