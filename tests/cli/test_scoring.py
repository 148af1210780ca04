"""Scoring of gold answers, against a model that is a table."""

import math
import random
from collections.abc import Sequence

import pytest

from minipic_cli.scoring import ALTERNATIVES, Gold, Probe, Said, score

VOCABULARY = 200


class TableModel:
    """Log probabilities that depend on the tokens so far; shows as many alternatives as vLLM would."""

    def __init__(self) -> None:
        self.requests = 0

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        noise = random.Random(repr(list(ids)[-3:]))
        raw = [noise.gauss(0, 2) for _ in range(VOCABULARY)]
        total = math.log(sum(map(math.exp, raw)))
        return [x - total for x in raw]

    def complete(self, probes: list[Probe]) -> list[list[Said]]:
        self.requests += len(probes)
        return [self._one(probe) for probe in probes]

    def _one(self, probe: Probe) -> list[Said]:
        ids, said = list(probe.token_ids), []
        for _ in range(probe.max_tokens):
            logprobs = self.logprobs(ids)
            best = sorted(range(VOCABULARY), key=lambda t: -logprobs[t])
            token = best[0] if probe.only is None else probe.only
            shown = {*best[: probe.params()["logprobs"]], token}
            said.append(Said(token, {t: logprobs[t] for t in shown}))
            ids.append(token)
        return said

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        return [said.token for said in self._one(Probe(list(ids), count, None))]


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_teacher_forcing(seed: int) -> None:
    chosen = random.Random(seed)
    model = TableModel()
    golds = []
    for _ in range(5):
        prompt = [chosen.randrange(VOCABULARY) for _ in range(6)]
        answer = [chosen.randrange(VOCABULARY) for _ in range(chosen.randrange(1, 6))]
        golds.append(Gold(prompt, answer))
    expected = [[model.logprobs([*p, *a[:i]])[t] for i, t in enumerate(a)] for p, a in golds]
    done: list[int] = []
    assert score(golds, model.complete, done.append) == expected
    assert sum(done) == len(golds)


def test_an_answer_that_the_model_gives_itself_costs_one_request() -> None:
    model = TableModel()
    answer = model.greedy([1, 2, 3], 8)
    found = score([Gold([1, 2, 3], answer)], model.complete)
    assert model.requests == 1
    assert len(found[0]) == 8


def test_an_unlikely_token_is_asked_for_by_itself() -> None:
    model = TableModel()
    logprobs = model.logprobs([5])
    worst = min(range(VOCABULARY), key=logprobs.__getitem__)
    assert score([Gold([5], [worst])], model.complete) == [[logprobs[worst]]]
    assert model.requests == 2


def test_no_answers_cost_nothing() -> None:
    model = TableModel()
    assert score([Gold([1], [])], model.complete) == [[]]
    assert score([], model.complete) == []
    assert model.requests == 0


def test_an_engine_that_keeps_the_log_probability_back_is_an_error() -> None:
    silent = lambda probes: [[Said(0, {0: -1.0})] for _ in probes]
    with pytest.raises(ValueError, match="does not report"):
        score([Gold([1], [7])], silent)


def test_requests_are_greedy_and_ask_for_no_more_than_vllm_gives() -> None:
    params = Probe([1], 4, None).params()
    assert params["temperature"] == 0
    assert params["ignore_eos"] is True
    assert params["logprobs"] == ALTERNATIVES == 20
    assert Probe([1], 1, 9).params()["allowed_token_ids"] == [9]
