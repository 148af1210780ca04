"""Questions about real passages, the same for the same seed: what the text says goes in, so answers can be checked.

Passages are prose of Python's reference manual (``pydoc_data.topics``, in the standard library) and, where the package
``fanoutqa`` is installed, facts of its questions. Nothing of them is stored here.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
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
CITED: Final = re.compile(r'["`*:=<>_\\]')


class Passage(NamedTuple):
    """A piece of real text."""

    heading: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()  # questions that it answers, and the answers

    @classmethod
    def of_facts(cls, heading: str, known: tuple[tuple[str, str], ...]) -> "Passage":
        """One line per fact."""
        return cls(heading, "\n".join(f"{q} {a}." for q, a in known), known)


class Posed(NamedTuple):
    """A question and its answer."""

    question: str
    begun: str  # how the answer begins, for every method; small models don't get to the point by themselves
    gold: str  # how it goes on


@dataclass(frozen=True)
class Item:
    """A question about some passages."""

    kind: Kind
    documents: Sequence[Document]  # modules of a schema, in its order
    question: str
    begun: str  # see ``Posed``
    gold: str


def build(count: int, seed: int = 0) -> list[Item]:
    """``count`` questions, kinds in turn."""
    return items_of(draw(count, seed))


def draw(count: int, seed: int = 0) -> dict[str, Any]:
    """The same as JSON, to be asked where the texts aren't at hand (another Python has other topics): ``items_of``."""
    source = random.Random(seed)
    shelves = {"manual": _shelved(manual(), source)}
    kinds: list[tuple[Kind, str]] = [("continue", "manual"), ("cloze", "manual"), ("passage", "manual")]
    if known := [p for p in facts() if eligible(p)]:
        shelves["facts"] = _shelved(known, source)
        kinds.append(("fact", "facts"))
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        kind, stock = kinds[len(rows) % len(kinds)]
        chosen = [(row, source.randrange(ALTERNATIVES)) for row in sorted(source.sample(range(SHELVES), DOCUMENTS))]
        passages = [shelves[stock][row][i] for row, i in chosen]
        if len({p.heading for p in passages}) < DOCUMENTS:
            continue
        if made := pose(kind, source, passages, source.choice(passages)):
            picked = [f"p{row}-{i}" for row, i in chosen]
            rows.append({"kind": kind, "shelves": stock, "picked": picked, **made._asdict()})
    texts = {name: [[[p.heading, p.text] for p in shelf] for shelf in shelved] for name, shelved in shelves.items()}
    return {"seed": seed, "shelves": texts, "items": rows}


def items_of(drawn: Mapping[str, Any]) -> list[Item]:
    """What ``draw`` drew, with its documents."""
    schemas = {name: _schema(shelves) for name, shelves in drawn["shelves"].items()}
    return [
        Item(r["kind"], schemas[r["shelves"]].select(*r["picked"]), r["question"], r["begun"], r["gold"])
        for r in drawn["items"]
    ]


def pose(
    kind: Kind, source: random.Random, passages: Sequence[Passage], target: Passage, ending: int = ENDING
) -> Posed | None:
    """A question about ``target``, one of ``passages``; ``None`` if it gives none.

    Args:
        kind: of the question.
        source: chooses what is asked.
        passages: all that the prompt holds: the answer must be clear among them.
        target: which is asked about.
        ending: words of a sentence or passage that are asked for.
    """
    return _MAKERS[kind](source, passages, target, ending)


def _schema(shelves: Sequence[Sequence[Sequence[str]]]) -> Schema:
    unions = [
        Union(*(Module(f"p{row}-{i}", f"{heading}\n{text}") for i, (heading, text) in enumerate(shelf)))
        for row, shelf in enumerate(shelves)
    ]
    return Schema("passages", *unions)


def _shelved(passages: list[Passage], source: random.Random) -> list[list[Passage]]:
    picked = source.sample(passages, SHELVES * ALTERNATIVES)
    return [picked[i::SHELVES] for i in range(SHELVES)]


def manual() -> list[Passage]:
    """Prose of Python's reference manual."""
    from pydoc_data.topics import topics

    found: list[Passage] = []
    for topic in topics.values():
        paragraphs = re.split(r"\n\s*\n", topic)
        heading = paragraphs[0].split("\n")[0].strip()
        if CITED.search(heading):
            continue
        for paragraph in paragraphs[1:]:
            if text := prose(paragraph):
                found.append(Passage(heading, text))
    return sorted(set(found))


def prose(paragraph: str) -> str | None:
    """The paragraph as one line if it is plain text of a passage's length: not code, no list."""
    line = " ".join(paragraph.split())
    if paragraph[:1].isspace() or not 40 <= len(line.split()) <= 95 or len(CITED.findall(line)) > 6:
        return None
    return line if line[0].isupper() and line[-1] == "." else None


def facts() -> list[Passage]:
    """The facts that one multi-hop question needs, as one passage, however many. Empty without the package."""
    spec = find_spec("fanoutqa")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "fanout-final-dev.json"
        if path.is_file():
            asked: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return [_passage(q) for q in asked]
    return []


def eligible(passage: Passage) -> bool:
    """Whether facts make a passage of the usual length."""
    return 4 <= len(passage.facts) <= 7


def _passage(asked: dict[str, Any]) -> Passage:
    known = tuple(
        (step["question"].strip(), str(step["answer"]).strip())
        for step in asked["decomposition"]
        if isinstance(step["answer"], str | int | float)
        and not isinstance(step["answer"], bool)
        and len(str(step["answer"]).split()) <= 6
    )
    return Passage.of_facts(asked["question"].strip(), known)


def sentences(text: str) -> list[list[str]]:
    """The words of each sentence."""
    return [s.split() for s in re.split(r"(?<=[.!?]) (?=[A-Z])", text)]


def _continue(source: random.Random, passages: Sequence[Passage], target: Passage, ending: int) -> Posed | None:
    long = [s for s in sentences(target.text) if len(s) >= OPENING + ENDING]
    if not long:
        return None
    words = source.choice(long)
    shown, gold = " ".join(words[:OPENING]), " ".join(words[OPENING : OPENING + ending])
    if sum(p.text.count(shown) for p in passages) != 1:
        return None
    return Posed(f'Copy from the text above the sentence that begins with "{shown}".', shown, f" {gold}")


def _cloze(source: random.Random, passages: Sequence[Passage], target: Passage, _ending: int) -> Posed | None:
    everything = " ".join(p.text for p in passages)
    places = [
        (words, i)
        for words in sentences(target.text)
        for i, word in enumerate(words[3:], 3)
        if word.isalpha() and word.islower() and len(word) > 4 and len(re.findall(rf"\b{word}\b", everything)) == 1
    ]
    if not places:
        return None
    words, i = source.choice(places)
    sentence = " ".join([*words[:i], "____", *words[i + 1 :]])
    question = f'Which word of the text above is missing here?\n"{sentence}"'
    return Posed(question, 'The missing word is "', words[i])


def _passage_of(_source: random.Random, _passages: Sequence[Passage], target: Passage, ending: int) -> Posed | None:
    gold = " ".join(target.text.split()[:ending])
    return Posed(f'What does the text above say under "{target.heading}"?', f"{target.heading}\n", gold)


def _fact(source: random.Random, _passages: Sequence[Passage], target: Passage, _ending: int) -> Posed | None:
    question, answer = source.choice(target.facts)
    return Posed(f"Answer from the text above: {question}", question, f" {answer}")


_Maker = Callable[[random.Random, Sequence[Passage], Passage, int], Posed | None]
_MAKERS: Final[Mapping[Kind, _Maker]] = {
    "continue": _continue,
    "cloze": _cloze,
    "passage": _passage_of,
    "fact": _fact,
}
