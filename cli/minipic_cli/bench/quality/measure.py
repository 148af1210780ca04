"""Asking every question under every method, and what comes of it."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from minipic_cli.bench.quality.masked import Answer, MaskedModel
from minipic_cli.bench.quality.methods import FULL, METHODS, NONE, Method, compose, computed_tokens
from minipic_cli.bench.quality.questions import Item
from minipic_cli.bench.quality.scores import Score, bootstrap, divergence, exact_match, token_f1
from minipic_sdk import ModelProfile

EXTRA = 3  # tokens generated beyond as many as the wanted answer has
Scores = dict[str, Score]
"""By name of the method."""


def ask(
    model: MaskedModel, profile: ModelProfile, item: Item, methods: Mapping[str, Method], *, generate: bool = True
) -> Scores:
    """One question under every method; full attention and no documents must be among them.

    Args:
        model: that answers.
        profile: of the model.
        item: the question.
        methods: by name.
        generate: whether wrong answers are written out, for their F1; without, it is 0.
    """
    begun, gold = profile.encode(item.begun), profile.encode(item.gold)
    prompts = {name: compose(method, item, profile) for name, method in methods.items()}
    answers = {name: model.answer(prompt, begun, gold) for name, prompt in prompts.items()}
    # Greedy decoding writes the wanted answer as long as each of its tokens is the most likely one.
    said = dict.fromkeys(answers, item.gold)
    if astray := {name: a.state for name, a in answers.items() if a.state is not None and generate}:
        limit = len(gold) - min(answers[name].agreed for name in astray) + EXTRA
        texts = model.generate(list(astray.values()), limit, profile.eos_token_ids)
        for name, ids in zip(astray, texts, strict=True):
            said[name] = profile.tokenizer.decode([*gold[: answers[name].agreed], *ids])
    full = answers[FULL]
    head = _common(prompts[FULL].plain_token_ids, prompts[NONE].plain_token_ids)
    return {
        name: _score(answer, full, gold, said[name], item, computed_tokens(prompts[name], head))
        for name, answer in answers.items()
    }


def _score(answer: Answer, full: Answer, gold: Sequence[int], said: str, item: Item, computed: int) -> Score:
    logprob = answer.logprobs.gather(1, torch.tensor(gold, device=answer.logprobs.device)[:, None]).mean()
    return Score(
        exact=1.0 if answer.state is None else exact_match(said, item.gold),
        f1=1.0 if answer.state is None else token_f1(said, item.gold),
        logprob=float(logprob),
        kl=divergence(full.logprobs, answer.logprobs),
        same=float((answer.logprobs.argmax(-1) == full.logprobs.argmax(-1)).float().mean()),
        computed=float(computed),
    )


def ask_all(
    model: MaskedModel,
    profile: ModelProfile,
    items: Sequence[Item],
    methods: Mapping[str, Method] = METHODS,
    *,
    generate: bool = True,
    resume: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Scores]:
    """Every question under every method.

    Args:
        model: that answers.
        profile: of the model.
        items: the questions.
        methods: by name.
        generate: see ``ask``.
        resume: a file that keeps each answered question; what it holds already isn't asked again.
        note: told about progress.
    """
    lines = resume.read_text(encoding="utf-8").splitlines() if resume and resume.exists() else []
    done = [{name: Score(*row) for name, row in json.loads(line).items()} for line in lines][: len(items)]
    for i, item in enumerate(items[len(done) :], len(done) + 1):
        done.append(ask(model, profile, item, methods, generate=generate))
        if resume:
            with resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
        note(f"question {i} of {len(items)} ({item.kind})")
    return done


def summarise(items: Sequence[Item], answers: Sequence[Scores]) -> list[dict[str, Any]]:
    """One row per method: each score as [mean, low, high], differences from full attention, means by kind."""
    rows: list[dict[str, Any]] = []
    kinds = sorted({item.kind for item in items})
    for name in answers[0]:
        mine = [a[name] for a in answers]
        row: dict[str, Any] = {"method": name}
        for field in Score._fields:
            row[field] = _rounded(bootstrap([getattr(s, field) for s in mine]))
        for field in ("exact", "logprob"):
            gaps = [getattr(a[name], field) - getattr(a[FULL], field) for a in answers]
            row[f"{field}_from_full"] = _rounded(bootstrap(gaps))
        row["kinds"] = {
            kind: {
                field: round(
                    fmean(getattr(s, field) for s, item in zip(mine, items, strict=True) if item.kind == kind), 4
                )
                for field in ("exact", "f1", "logprob", "kl")
            }
            for kind in kinds
        }
        rows.append(row)
    return rows


def counts(items: Sequence[Item]) -> dict[str, int]:
    """Questions by kind."""
    return dict(Counter(item.kind for item in items))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(v, 4) for v in values]
