"""How likely an engine finds given answers: log probabilities of gold tokens, the same way for stock and MiniPIC.

`prompt_logprobs` would do it at once, but computes the whole prompt again, and span requests refuse it. A grammar that
allows only the answer won't do: the runner masks the logits before the sampler takes log probabilities. So an answer is
generated greedily with the best alternatives of each token; as long as the model says what the gold answer says, one
request scores it all. Where it deviates, the gold token's log probability is taken from the alternatives, or asked for
with a request that allows only this token (of which vLLM does report the log probability before the restriction), and
the rest is scored behind the gold token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

ALTERNATIVES: Final = 20  # vLLM's own limit by default


class Gold(NamedTuple):
    """A prompt and the answer to score."""

    token_ids: Sequence[int]
    answer: Sequence[int]


class Probe(NamedTuple):
    """A request that scoring needs: greedy, end-of-text ignored."""

    token_ids: list[int]
    max_tokens: int
    only: int | None  # the one token that may be generated

    def params(self) -> dict[str, Any]:
        """Its sampling parameters, as vLLM names them."""
        limited = {} if self.only is None else {"allowed_token_ids": [self.only]}
        logprobs = ALTERNATIVES if self.only is None else 1
        return {"temperature": 0, "ignore_eos": True, "max_tokens": self.max_tokens, "logprobs": logprobs, **limited}


class Said(NamedTuple):
    """One generated token."""

    token: int
    logprobs: Mapping[int, float]  # of the alternatives and of the token itself


Complete = Callable[[list[Probe]], list[list[Said]]]
"""Runs requests as one batch; the generated tokens of each."""


def score(golds: Sequence[Gold], complete: Complete, done: Callable[[int], None] = lambda _: None) -> list[list[float]]:
    """Log probability of every answer's tokens, in order; ``done`` is told how many answers more are scored."""
    found: list[list[float]] = [[] for _ in golds]
    narrow: set[int] = set()  # whose next token was not among the alternatives
    while todo := [i for i, gold in enumerate(golds) if len(found[i]) < len(gold.answer)]:
        probes = [_probe(golds[i], len(found[i]), only=i in narrow) for i in todo]
        for i, said in zip(todo, complete(probes), strict=True):
            before = len(found[i])
            _take(golds[i].answer, found[i], said)
            if len(found[i]) == before:
                if i in narrow:
                    raise ValueError("the engine does not report the log probability of the token it was allowed")
                narrow.add(i)
            else:
                narrow.discard(i)
        done(sum(len(found[i]) == len(golds[i].answer) for i in todo))
    return found


def _probe(gold: Gold, at: int, *, only: bool) -> Probe:
    ids = [*gold.token_ids, *gold.answer[:at]]
    return Probe(ids, 1, gold.answer[at]) if only else Probe(ids, len(gold.answer) - at, None)


def _take(answer: Sequence[int], found: list[float], said: Sequence[Said]) -> None:
    """Add what ``said`` tells about the answer's next tokens: up to the first that is another one's, inclusive."""
    for token, logprobs in said:
        gold = answer[len(found)]
        if gold not in logprobs:
            return
        found.append(logprobs[gold])
        if token != gold:
            return
