"""``minipic doctor MODEL``: stock vLLM and MiniPIC on a model, compared with numbers."""

import statistics
from pathlib import Path
from typing import Any, Final

from minipic_cli import console
from minipic_cli.bench.cpu import Engine
from minipic_cli.bench.results import BenchmarkError
from minipic_cli.doctor import Check
from minipic_cli.lookups import gold, lookups, passages
from minipic_sdk import ModelProfile, Prompt
from minipic_sdk.errors import MiniPICError

MAX_PLAIN: Final = 1e-3  # between stock's and our log probabilities of a plain prompt's tokens, float32
MAX_SPANS: Final = 1e-3  # between one prompt's with its spans computed, cached and cached in another order
MAX_GAP: Final = 0.3  # per token of true answers, between full attention and spans
_BLOCK_SIZE: Final = 32  # stock vLLM takes multiples of 32 on a CPU
_ITEMS: Final = 24
_DOCUMENTS: Final = 4

Scores = list[list[float]]


def check_model(model: Path) -> list[Check]:
    """Compare; one engine at a time, so that a model needs memory once."""
    try:
        profile = ModelProfile.from_directory(model, block_size=_BLOCK_SIZE)
    except MiniPICError as error:
        return [Check("model profile", False, str(error))]
    control = profile.control_tokens
    checks = [
        Check(
            "model profile",
            True,
            f"control tokens {control.ssep}, {control.pdep}, {control.pad}; anchor "
            f"{profile.tokenizer.decode(profile.anchor_token_ids)!r}",
        )
    ]
    questions = _Questions(profile)
    try:
        with console.waiting("stock vLLM answers plain prompts"):
            theirs = questions.plain(model, "stock")
    except BenchmarkError as error:
        return [*checks, Check("stock vLLM runs it", False, str(error))]
    try:
        with console.waiting("MiniPIC answers plain prompts, then spans: computed, cached, and in another order"):
            ours, spans = questions.with_spans(model)
    except BenchmarkError as error:
        return [*checks, Check("runs with spans", False, f"refused: {error}")]
    return [*checks, *_compare(theirs, ours, spans)]


class _Questions:
    """The prompts, and the engines' answers to them."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile
        documents = passages()[:_DOCUMENTS]
        items = lookups(documents, _ITEMS)
        order = documents[::-1]
        self._prompts = [Prompt.compose(documents, item.question, profile=profile) for item in items]
        self._other = [Prompt.compose(order, item.question, profile=profile) for item in items]
        self._items = items
        self._texts = [profile.encode(d.text) for d in passages()]

    def plain(self, model: Path, kind: str) -> dict[str, Any]:
        """Greedy tokens of texts, and scores of the answers, from bare tokens."""
        engine = Engine(kind, model, _BLOCK_SIZE, True)
        try:
            engine.answer()
            return self._plain(engine)
        finally:
            engine.close()

    def with_spans(self, model: Path) -> tuple[dict[str, Any], dict[str, Scores]]:
        """The same from MiniPIC, and the scores with spans in three states of the cache."""
        engine = Engine("minipic", model, _BLOCK_SIZE, True)
        try:
            engine.answer()
            plain = self._plain(engine)
            engine.ask("forget")
            spans = {name: self._score(engine, self._prompts) for name in ("computed", "cached")}
            engine.ask("forget")
            self._score(engine, self._other)
            spans["moved"] = self._score(engine, self._prompts)
            return plain, spans
        finally:
            engine.close()

    def _plain(self, engine: Engine) -> dict[str, Any]:
        return {
            "greedy": [engine.ask("greedy", prompt=ids)["tokens"] for ids in self._texts],
            "scores": self._score(engine, self._prompts, plain=True),
        }

    def _score(self, engine: Engine, prompts: list[Prompt], *, plain: bool = False) -> Scores:
        golds = (gold(item, prompt, plain=plain) for item, prompt in zip(self._items, prompts, strict=True))
        meta = {} if plain else prompts[0].vllm_xargs  # the same for all: it is about the documents
        return engine.ask("score", golds=[[list(g.token_ids), list(g.answer)] for g in golds], meta=meta)["logprobs"]


def _compare(theirs: dict[str, Any], ours: dict[str, Any], spans: dict[str, Scores]) -> list[Check]:
    same = sum(a == b for a, b in zip(theirs["greedy"], ours["greedy"], strict=True))
    count = len(theirs["greedy"])
    plain = _largest(theirs["scores"], ours["scores"])
    warm, moved = _largest(spans["computed"], spans["cached"]), _largest(spans["computed"], spans["moved"])
    gap = _mean(theirs["scores"]) - _mean(spans["computed"])
    return [
        Check(
            "plain prompts: tokens as stock's", same == count, f"{same} of {count} greedy continuations are the same"
        ),
        Check("plain prompts: log probabilities", plain <= MAX_PLAIN, f"within {plain:.1e} of stock's"),
        Check("spans cached as computed", warm <= MAX_SPANS, f"log probabilities within {warm:.1e}"),
        Check("spans cached in another order", moved <= MAX_SPANS, f"log probabilities within {moved:.1e}"),
        Check(
            "true answers stay likely",
            gap <= MAX_GAP,
            f"{gap:.3f} a token less likely with spans than with full attention, over {len(theirs['scores'])} questions"
            + ("" if gap <= MAX_GAP else "; the model may want another layout"),
        ),
    ]


def _largest(one: Scores, other: Scores) -> float:
    return max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def _mean(scores: Scores) -> float:
    return statistics.fmean(statistics.fmean(tokens) for tokens in scores)
