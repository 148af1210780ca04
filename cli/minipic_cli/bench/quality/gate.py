"""The verdict: the cheapest layout that keeps nearly all of what documents are worth to a model.

How far a layout moves the answers is its KL divergence from full attention, per token of the wanted answer. What that
means differs between models, so it is divided by the KL of asking without any documents: 0 is full attention, 1 is as
if the documents weren't there. A layout is safe if this share is at most 10 %, and, as few questions are asked, if the
upper bound of its 95 % interval (bootstrap over questions) is at most 20 %.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from minipic_cli.bench.quality.measure import Scores
from minipic_cli.bench.quality.methods import FULL, NONE, Method
from minipic_cli.bench.quality.scores import Mean
from minipic_sdk.gate import Gate, Verdict

SAFE, SURE = 0.10, 0.20  # of what documents are worth: the estimate, and the bound of its interval
CANDIDATES: Final[Mapping[str, Method]] = {
    FULL: Method({"layout": "prefix"}, "full"),
    NONE: Method({"layout": "prefix"}, "none", documents=False),
    "block": Method({"layout": "block"}, "anchored"),
    "anchored": Method({"layout": "anchored"}, "anchored"),
    "epic": Method({"layout": "epic"}, "epic anchored"),
}
_ORDER: Final[tuple[Verdict, ...]] = ("block", "anchored", "epic")  # cheapest first


def judge(answers: Sequence[Scores]) -> Gate:
    """The verdict on a model that gave these answers."""
    shares = {name: share(answers, name) for name in _ORDER}
    safe: Iterator[Verdict] = (name for name in _ORDER if shares[name].value <= SAFE and shares[name].high <= SURE)
    numbers: dict[str, dict[str, float]] = {}
    for name in CANDIDATES:
        mine = [a[name] for a in answers]
        numbers[name] = {
            "kl": round(fmean(s.kl for s in mine), 4),
            "logprob": round(fmean(s.logprob for s in mine), 4),
            "same": round(fmean(s.same for s in mine), 4),
            "computed": round(fmean(s.computed for s in mine), 1),
        }
        if name in shares:
            numbers[name] |= {"share": round(shares[name].value, 4), "share_high": round(shares[name].high, 4)}
    verdict: Verdict = next(safe, "prefix")  # pyright: ignore[reportAssignmentType]
    return Gate(verdict, items=len(answers), numbers=numbers)


def share(answers: Sequence[Scores], name: str, *, rounds: int = 2000) -> Mean:
    """KL of a method over KL without documents, as a ratio of means, with its 95 % interval."""
    source = random.Random(0)
    pairs = [(a[name].kl, a[NONE].kl) for a in answers]

    def ratio(rows: Sequence[tuple[float, float]]) -> float:
        return sum(r[0] for r in rows) / max(sum(r[1] for r in rows), 1e-9)

    drawn = sorted(ratio(source.choices(pairs, k=len(pairs))) for _ in range(rounds))
    return Mean(ratio(pairs), drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds) - 1])
