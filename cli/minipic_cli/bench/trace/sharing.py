"""Which prompts share which documents: popularity and co-occurrence as real questions have them.

Three numbers are fitted to fanoutqa's 310 development questions and the Wikipedia pages they need, see
`benchmarks/traces/fit_sharing.py`; that one half of all occurrences are new is 2WikiMultihopQA's, as in the paper.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharing:
    """How documents come back."""

    new: float = 0.5  # share of occurrences that are a document's first
    popular: float = 0.95  # share of repeats drawn by uses so far; the rest are drawn evenly
    runs: float = 0.95  # chance that a repeated document of a prompt is followed by another repeated one
    together: float = 0.95  # chance that this next one is a companion of the one before in an earlier prompt


class _Past:
    """What earlier prompts had."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.used: list[int] = []  # every occurrence
        self.found_in: list[list[int]] = []  # per document: prompts

    def again(self, mine: list[int], last: int | None, sharing: Sharing, r: random.Random) -> int | None:
        """A document from an earlier prompt, or none when there is none left to draw."""
        if last is not None and r.random() < sharing.together:
            companions = [d for d in self.prompts[r.choice(self.found_in[last])] if d not in mine]
            if companions:
                return r.choice(companions)
        for _ in range(20 if self.used else 0):
            popular = r.random() < sharing.popular
            document = r.choice(self.used) if popular else r.randrange(len(self.found_in))
            if document not in mine and self.found_in[document]:
                return document
        return None


def draw(sizes: Sequence[int], sharing: Sharing, r: random.Random) -> list[list[int]]:
    """Document numbers of each prompt, ``sizes`` of them, in order of appearance; none twice in a prompt."""
    past = _Past()
    repeated = 1 - sharing.new
    begins = min(1.0, repeated * (1 - sharing.runs) / sharing.new)  # keeps the share of repeats what it must be
    for size in sizes:
        mine: list[int] = []
        last: int | None = None
        for i in range(size):
            chance = repeated if i == 0 else sharing.runs if last is not None else begins
            document = past.again(mine, last, sharing, r) if r.random() < chance else None
            last = document
            if document is None:
                document = len(past.found_in)
                past.found_in.append([])
            mine.append(document)
        for document in mine:
            past.used.append(document)
            past.found_in[document].append(len(past.prompts))
        past.prompts.append(mine)
    return past.prompts
