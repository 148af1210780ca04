"""Fits the trace generator's sharing numbers to fanoutqa: ``pip install --no-deps fanoutqa``, then run this.

What is fitted, on the 310 development questions with the Wikipedia pages each of them needs (no data is kept):

* ``popular``, so that the share of repeated occurrences that are a page's second use (not its third, fourth, ...) is
  the data's,
* ``runs``, so that the share of questions without any shared page is the data's,
* ``together``, so that among the pairs of shared pages of one question, the share that meets in another question too
  is the data's.

The share of new occurrences is the trace's own choice (one half), so while fitting it is the data's.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from typing import Any

from minipic_cli.bench.trace.sharing import Sharing, draw


def pages_of(question: dict[str, Any]) -> list[int]:
    """Every page that a question or its sub-questions need, once."""

    def walk(parts: Sequence[dict[str, Any]]) -> Iterator[int]:
        for part in parts:
            if part.get("evidence"):
                yield part["evidence"]["pageid"]
            yield from walk(part.get("decomposition") or [])

    return list(dict.fromkeys(walk(question["decomposition"])))


def statistics(questions: Sequence[Sequence[int]]) -> dict[str, float]:
    """What is to be matched."""
    uses = Counter(p for q in questions for p in q)
    total, repeats = sum(uses.values()), sum(uses.values()) - len(uses)
    pairs = Counter(frozenset(c) for q in questions for c in combinations([p for p in q if uses[p] > 1], 2))
    return {
        "questions": len(questions),
        "occurrences": total,
        "pages": len(uses),
        "shared_pages": sum(n > 1 for n in uses.values()),
        "new": len(uses) / total,
        "second_use": sum(n > 1 for n in uses.values()) / repeats,
        "together": sum(n for n in pairs.values() if n > 1) / max(sum(pairs.values()), 1),
        "unshared": sum(all(uses[p] == 1 for p in q) for q in questions) / len(questions),
        "most_used": max(uses.values()),
    }


def simulate(sizes: Sequence[int], sharing: Sharing, seeds: Sequence[int]) -> dict[str, float]:
    """Mean statistics of the generator with the data's question sizes."""
    found = [statistics(draw(sizes, sharing, random.Random(seed))) for seed in seeds]
    return {k: sum(f[k] for f in found) / len(found) for k in found[0]}


def fit(questions: Sequence[Sequence[int]]) -> tuple[Sharing, dict[str, float]]:
    """The grid point nearest to the data."""
    data, sizes = statistics(questions), [len(q) for q in questions]

    def distance(sharing: Sharing) -> float:
        mine = simulate(sizes, sharing, range(6))
        return sum((mine[k] - data[k]) ** 2 for k in ("second_use", "together", "unshared"))

    grid = [i / 10 + 0.05 for i in range(10)]
    return min((Sharing(data["new"], *point) for point in product(grid, repeat=3)), key=distance), data


def _data() -> Path:
    spec = find_spec("fanoutqa")  # not imported: its dependencies aren't needed
    if spec is None or spec.origin is None:
        raise SystemExit("fanoutqa is missing: pip install --no-deps fanoutqa")
    return Path(spec.origin).parent / "data" / "fanout-final-dev.json"


def main() -> None:
    """Print the fitted numbers and both sides' statistics."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    questions = json.loads(_data().read_text())
    found = [p for p in map(pages_of, questions) if p]
    sharing, data = fit(found)
    mine = simulate([len(q) for q in found], sharing, range(100, 120))
    print(json.dumps({"fitted": asdict(sharing), "data": data, "model": mine}, indent=1))


if __name__ == "__main__":
    main()
