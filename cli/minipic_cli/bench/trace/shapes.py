"""Traces of synthetic prompts with the shapes of real workloads, seeded, as token ids for any model.

* ``2wiki``: 10 documents of about 100 tokens, a short head and question; documents come back as ``sharing`` says.
* ``long``: 8 documents of 2,000 tokens, otherwise the same.
* ``agent``: sessions with 20 of 60 tool descriptions in changing subsets and orders, and a growing history.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minipic_cli.bench.trace.sharing import Sharing, draw

HEAD, ANCHOR = 40, 4  # tokens
TOOLS, TOOLS_OF_A_TURN, TURNS = 60, 20, 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which ids are ordinary text, and which are control tokens (SSEP, PDEP, PAD)."""

    low: int
    high: int
    control: tuple[int, int, int]

    def words(self, r: random.Random, count: int) -> tuple[int, ...]:
        """Random text."""
        return tuple(r.choices(range(self.low, self.high), k=count))


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt: a head, spans, and what depends on all before it."""

    head: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    dependent: tuple[tuple[int, ...], ...]

    @property
    def visible(self) -> int:
        """Tokens of text."""
        return len(self.head) + sum(map(len, self.spans)) + sum(map(len, self.dependent))

    def plain(self) -> list[int]:
        """For a server without spans."""
        return [t for part in (self.head, *self.spans, *self.dependent) for t in part]

    def physical(self, control: tuple[int, int, int], block: int) -> list[int]:
        """As spans: control token first, padding to whole blocks, none behind the last piece."""
        ssep, pdep, pad = control
        ids = list(self.head)
        for mark, part in [*((ssep, s) for s in self.spans), *((pdep, d) for d in self.dependent)]:
            ids += [pad] * (-len(ids) % block)
            ids.append(mark)
            ids += part
        return ids


@dataclass(frozen=True, slots=True)
class Trace:
    """Prompts in order of arrival."""

    shape: str
    seed: int
    asks: tuple[Ask, ...]

    def documents(self) -> list[tuple[int, ...]]:
        """Distinct spans, in order of first appearance."""
        return list(dict.fromkeys(s for ask in self.asks for s in ask.spans))

    def again(self, words: Vocabulary, seed: int) -> "Trace":
        """The same documents in new orders and combinations, behind new questions."""
        r = random.Random(f"{self.seed} {seed}")
        pool = [s for ask in self.asks for s in ask.spans]
        asks: list[Ask] = []
        for ask in self.asks:
            spans = list(dict.fromkeys(r.choices(pool, k=2 * len(ask.spans))))[: len(ask.spans)]
            asks.append(Ask(ask.head, tuple(spans), tuple(words.words(r, len(d)) for d in ask.dependent)))
        return Trace(self.shape, seed, tuple(asks))

    def bound(self, block: int) -> dict[str, float]:
        """What any server must compute, what stock does with a cache of any size, and their ratios.

        ``visible``: all tokens; ``once``: those that must be computed at least once; ``once_padded``: with the padding
        and control tokens that spans carry; ``stock``: those behind the longest common prefix of whole blocks.
        """
        visible = sum(ask.visible for ask in self.asks)
        heads = sum(map(len, {ask.head for ask in self.asks}))
        rest = sum(len(d) for ask in self.asks for d in ask.dependent)
        documents = self.documents()
        padded = sum(-(-(len(d) + 1) // block) * block for d in documents)
        once = heads + rest + sum(map(len, documents))
        stock = _computed_by_stock((ask.plain() for ask in self.asks), block)
        questions = sum(len(ask.dependent) for ask in self.asks)
        once_padded = heads + rest + questions + padded
        return {
            "prompts": len(self.asks),
            "documents": len(documents),
            "occurrences": sum(len(ask.spans) for ask in self.asks),
            "visible": visible,
            "once": once,
            "once_padded": once_padded,
            "stock": stock,
            "over_stock": round(stock / once, 4),
            "over_stock_padded": round(stock / once_padded, 4),
        }


def _computed_by_stock(prompts: Iterable[list[int]], block: int) -> int:
    seen: set[int] = set()
    computed = 0
    for ids in prompts:
        chain, hit, missed = 0, 0, False
        for at in range(0, len(ids) - block + 1, block):
            chain = hash((chain, *ids[at : at + block]))
            missed = missed or chain not in seen
            hit += 0 if missed else block
            seen.add(chain)
        computed += len(ids) - min(hit, len(ids) - 1)
    return computed


def make(shape: str, prompts: int, words: Vocabulary, *, seed: int = 0, sharing: Sharing | None = None) -> Trace:
    """A trace of one of the shapes."""
    r = random.Random(f"{shape} {seed}")
    head = words.words(r, HEAD)
    if shape == "agent":
        return Trace(shape, seed, tuple(_sessions(prompts, head, words, r)))
    count, mean = {"2wiki": (10, 100), "long": (8, 2000)}[shape]
    drawn = draw([count] * prompts, sharing or Sharing(), r)
    texts = [words.words(r, _length(r, mean)) for _ in range(1 + max(d for p in drawn for d in p))]
    asks = (Ask(head, tuple(texts[d] for d in p), (words.words(r, _length(r, 24)),)) for p in drawn)
    return Trace(shape, seed, tuple(asks))


def that_exceeds(capacity: int, factor: float, block: int, words: Vocabulary, *, seed: int = 0) -> Trace:
    """A 2wiki trace whose distinct documents take ``factor`` times ``capacity`` tokens of KV cache."""
    per_prompt = 5 * (100 + block)
    prompts = math.ceil(factor * capacity / per_prompt)
    while True:
        trace = make("2wiki", prompts, words, seed=seed)
        size = sum(-(-(len(d) + 1) // block) * block for d in trace.documents())
        if abs(size - factor * capacity) <= 0.01 * size:
            return trace
        prompts = max(1, round(prompts * factor * capacity / size))


def _length(r: random.Random, mean: int) -> int:
    """Lognormal, with a third of its mean as deviation; at least a few tokens."""
    sigma = math.sqrt(math.log(1 + 1 / 9))
    return max(4, min(3 * mean, round(r.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


def _sessions(prompts: int, head: tuple[int, ...], words: Vocabulary, r: random.Random) -> Iterable[Ask]:
    tools = [words.words(r, _length(r, 150)) for _ in range(TOOLS)]
    sessions: list[list[tuple[int, ...]]] = [[] for _ in range(-(-prompts // TURNS))]
    for i in range(prompts):
        history = sessions[i % len(sessions)]
        history.append(words.words(r, _length(r, 40)))
        yield Ask(head, tuple(r.sample(tools, TOOLS_OF_A_TURN)), tuple(history))
        history.append(words.words(r, _length(r, 120)))


def metadata(head: Sequence[int], anchor: int) -> dict[str, Any]:
    """What ``vllm_xargs["minipic"]`` says of a prompt with this head."""
    return {"v": 1, **({"anchor": list(head[:anchor])} if anchor else {})}
