"""Scores of an answer, and means with bootstrap confidence intervals."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch


class Mean(NamedTuple):
    """A mean over questions, with the bounds of its 95 % interval (bootstrap over questions)."""

    value: float
    low: float
    high: float


class Score(NamedTuple):
    """One method's answer to one question."""

    exact: float  # 1 if the words are the wanted ones
    f1: float  # overlap of words
    logprob: float  # of the wanted answer, nats per token
    kl: float  # from full attention, nats per token of the wanted answer
    same: float  # share of the wanted answer's tokens at which full attention would say the same
    computed: float  # prompt tokens, warm


def bootstrap(values: Sequence[float], *, rounds: int = 2000, seed: int = 0) -> Mean:
    """Percentile bootstrap; the same for the same seed."""
    all_ = torch.tensor(values, dtype=torch.float64)
    drawn = torch.randint(len(values), (rounds, len(values)), generator=torch.Generator().manual_seed(seed))
    means = all_[drawn].mean(1).sort().values.tolist()
    return Mean(fmean(values), means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1])


def words(text: str) -> list[str]:
    """Lower case, without punctuation and articles (SQuAD's normalisation)."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def exact_match(said: str, gold: str) -> float:
    """Whether it begins with the wanted words."""
    wanted = words(gold)
    return float(words(said)[: len(wanted)] == wanted)


def token_f1(said: str, gold: str) -> float:
    """Harmonic mean of precision and recall of words, among as many as are wanted."""
    wanted = words(gold)
    mine = words(said)[: len(wanted)]
    common = sum((Counter(mine) & Counter(wanted)).values())
    return 2 * common / (len(mine) + len(wanted)) if common else 0.0


def divergence(full: torch.Tensor, other: torch.Tensor) -> float:
    """KL(full || other), mean over positions. Both are logprobs, [positions, vocab]."""
    return float((full.exp() * (full - other)).sum(-1).mean())
