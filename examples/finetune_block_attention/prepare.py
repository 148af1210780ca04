"""Write the training set: real passages, questions about them, and answers, as tokens in one file.

    python examples/finetune_block_attention/prepare.py MODEL build/block.npz

Passages are articles of Wikipedia (the extract in `gensim`'s wheel), prose of the standard library's docstrings and of
the descriptions of installed packages, and facts of those questions of `fanoutqa` that `minipic bench quality` never
asks. No passage shares eight words in a row with one that any seed of the benchmark may ask about, or with another one.
"""

import argparse
import ast
import bz2
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from minipic_cli.bench.quality.questions import (
    CITED,
    Kind,
    Passage,
    Posed,
    eligible,
    facts,
    manual,
    pose,
    prose,
    sentences,
)
from minipic_sdk import Document, ModelProfile, Prompt

RUN = 8  # words in a row that no two passages share
ENDING = 24  # words of an answer at most: more to learn from than the benchmark's eight
DOCUMENTS, QUESTIONS = (2, 6), 6  # in a group: fewest and most documents; questions
HELD_OUT, FACTS = 0.04, 0.1  # passages kept for validation; groups about facts
PASSAGE = 45  # words; the sentence that reaches them is the last


def articles() -> Iterator[Passage]:
    """Paragraphs of the Wikipedia extract in `gensim`'s test data, under title and section. Empty without the package."""
    spec = find_spec("gensim")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("test/test_data/enwiki-latest-pages-articles1.xml-*.bz2")):
            with bz2.open(path, "rt", encoding="utf-8") as file:
                pages = ElementTree.iterparse(file)
                title = ""
                for _, element in pages:
                    name = element.tag.rpartition("}")[2]
                    if name == "title":
                        title = element.text or ""
                    elif name == "text" and ":" not in title:
                        for heading, body in _sections(title, element.text or ""):
                            yield from _under(heading, body.split("\n"))


def docstrings() -> Iterator[Passage]:
    """Prose out of the standard library's docstrings, under their first lines."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # test data of a tool
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first, *rest = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
                yield from _under(first, rest)


def descriptions() -> Iterator[Passage]:
    """Prose out of the descriptions of installed packages, under their headings."""
    for found in distributions():
        heading = str(found.metadata["Name"])
        body = (found.read_text("METADATA") or "").partition("\n\n")[2]
        for paragraph in re.split(r"\n\s*\n", body):
            if paragraph.startswith("#"):
                heading, _, paragraph = paragraph.lstrip("# ").partition("\n")
            yield from _under(heading, [paragraph])


def unused_facts() -> list[Passage]:
    """Facts that no question of the benchmark is about, some of one list at a time."""
    known = facts()
    asked = {question for p in known if eligible(p) for question, _ in p.facts}
    out: list[Passage] = []
    for passage in known:
        left = [fact for fact in passage.facts if fact[0] not in asked]
        if not eligible(passage):
            out += [Passage.of_facts(passage.heading, tuple(left[i : i + 5])) for i in range(0, len(left) - 3, 5)]
    return out


def distinct(passages: Iterable[Passage], reserved: Iterable[str]) -> list[Passage]:
    """Those that share no run of words with a reserved text or with one before."""
    seen = {run for text in reserved for run in runs(text)}
    out: list[Passage] = []
    for passage in passages:
        mine = runs(passage.text)
        if seen.isdisjoint(mine):
            seen |= mine
            out.append(passage)
    return out


def runs(text: str) -> set[tuple[str, ...]]:
    """Every ``RUN`` words in a row, whatever their case and punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


class Writer:
    """Collects groups: a head, some documents and some questions with answers, each stored once."""

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._segments: dict[tuple[int, ...], int] = {}
        self._golds: list[int] = []
        self._groups: list[list[int]] = []

    def add(self, source: random.Random, passages: list[Passage], kinds: tuple[Kind, ...]) -> bool:
        """Add a group about these passages; ``False`` if too little can be asked."""
        asked: dict[str, Posed] = {}
        for _ in range(3 * QUESTIONS):
            posed = pose(source.choice(kinds), source, passages, source.choice(passages), ENDING)
            if posed and len(asked) < QUESTIONS:
                asked.setdefault(posed.question, posed)
        if len(asked) < QUESTIONS // 2:
            return False
        documents = [Document(f"{p.heading}\n{p.text}") for p in passages]
        group: list[int] = []
        for posed in asked.values():
            prompt = Prompt.compose(documents, posed.question, layout="block", profile=self.profile)
            *cached, last = (tuple(prompt.token_ids[i] for i in s.visible) for s in prompt.spans)
            gold = self.profile.encode(posed.gold)
            if not group:
                group = [self._segment(s, 0) for s in cached]
            group.append(self._segment((*last, *self.profile.encode(posed.begun), *gold), len(gold)))
        self._groups.append(group)
        return True

    def save(self, path: Path, held_out: int) -> None:
        """Write everything; the first ``held_out`` groups are for validation."""
        lengths = [len(s) for s in self._segments]
        tokens = np.array([t for s in self._segments for t in s])
        if tokens.max() >= 2**16:
            raise SystemExit("the vocabulary has more than 65,536 tokens")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            tokens=tokens.astype(np.uint16),
            starts=np.cumsum([0, *lengths], dtype=np.int32),
            golds=np.array(self._golds, np.uint16),  # tokens at a segment's end that are an answer; 0: a document
            groups=np.array([i for g in self._groups for i in g], np.int32),
            group_starts=np.cumsum([0, *map(len, self._groups)], dtype=np.int32),
            held_out=np.int32(held_out),
        )

    def _segment(self, ids: tuple[int, ...], gold: int) -> int:
        if ids not in self._segments:
            self._segments[ids] = len(self._segments)
            self._golds.append(gold)
        return self._segments[ids]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="model directory, for its tokenizer and chat template")
    parser.add_argument("out", type=Path, help=".npz file")
    parser.add_argument("--groups", type=int, default=14_000, help="prompts, of %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # other people's files
    source = random.Random(arguments.seed)
    reserved = [p.text for p in (*manual(), *filter(eligible, facts()))]
    texts = distinct((*articles(), *descriptions(), *docstrings()), reserved)
    known = distinct(unused_facts(), reserved)
    source.shuffle(texts)
    print(f"{len(texts)} passages of prose, {len(known)} of facts, none of the benchmark's {len(reserved)}")
    if len(texts) < 500:
        raise SystemExit("too few: pip install --no-deps gensim fanoutqa")
    writer = Writer(ModelProfile.from_directory(arguments.model))
    kept = int(HELD_OUT * len(texts))
    held_out = 0
    for count, texts_, facts_ in ((128, texts[:kept], []), (arguments.groups, texts[kept:], known)):
        done = 0
        while done < count:
            about_facts = len(facts_) >= DOCUMENTS[1] and source.random() < FACTS
            passages = source.sample(facts_ if about_facts else texts_, source.randint(*DOCUMENTS))
            if len({p.heading for p in passages}) == len(passages):
                done += writer.add(source, passages, ("fact",) if about_facts else ("continue", "cloze", "passage"))
                if sys.stderr.isatty() or done % 1000 == 0:
                    print(f"\r{done} of {count} groups", end="", file=sys.stderr, flush=True)
        held_out = held_out or done
    writer.save(arguments.out, held_out)
    print(f"\n{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")
    return 0


def _under(heading: str, paragraphs: Iterable[str]) -> Iterator[Passage]:
    heading = " ".join(heading.split()).rstrip(".")
    if 1 <= len(heading.split()) <= 12 and not CITED.search(heading):
        for paragraph in paragraphs:
            if re.search(r"^\s|\n\s|\|", paragraph):
                continue  # indented lines are lists of arguments, bars are tables
            for text in _cut(paragraph):
                if text := prose(text):
                    yield Passage(heading, text)


def _cut(paragraph: str) -> Iterator[str]:
    """Whole sentences, as many as make a passage."""
    held: list[str] = []
    for sentence in sentences(" ".join(paragraph.split())):
        held += sentence
        if len(held) >= PASSAGE:
            yield " ".join(held)
            held = []
    yield " ".join(held)


def _sections(title: str, markup: str) -> Iterator[tuple[str, str]]:
    """Headings and plain texts of an article."""
    text = re.sub(r"<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>|<math.*?</math>", "", markup, flags=re.DOTALL)
    for braces in (r"\{\{[^{}]*\}\}", r"\{\|.*?\|\}"):
        while text != (text := re.sub(braces, "", text, flags=re.DOTALL)):
            pass  # innermost first
    text = re.sub(r"\[\[(?:File|Image|Category):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[\S+ ([^\]]*)\]|<[^>]*>|'{2,}", r"\1", text).replace("&nbsp;", " ")
    opening, *rest = re.split(r"^=+\s*(.*?)\s*=+\s*$", text, flags=re.MULTILINE)
    yield title, opening
    for heading, body in zip(rest[::2], rest[1::2], strict=True):
        yield f"{title}, {heading}", body


if __name__ == "__main__":
    raise SystemExit(main())
