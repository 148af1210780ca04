"""Asking every question under every method, and what comes of it."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from minipic_cli.bench.quality.masked import Answer, Ask, MaskedModel
from minipic_cli.bench.quality.methods import FULL, METHODS, NONE, Method, compose, computed_tokens
from minipic_cli.bench.quality.questions import Item
from minipic_cli.bench.quality.scores import Score, bootstrap, divergence, exact_match, token_f1
from minipic_sdk import ModelProfile

EXTRA = 3  # tokens generated beyond as many as the wanted answer has
AT_ONCE = 8  # questions on a GPU
Scores = dict[str, Score]
"""By name of the method."""


class Models(NamedTuple):
    """A model without and, if there is one, with an adapter."""

    plain: MaskedModel
    adapted: MaskedModel | None = None


def ask(
    models: Models,
    profile: ModelProfile,
    items: Sequence[Item],
    methods: Mapping[str, Method],
    *,
    generate: bool = True,
) -> list[Scores]:
    """Some questions under every method; full attention and no documents must be among them.

    Args:
        models: that answer.
        profile: of the model.
        items: the questions.
        methods: by name.
        generate: whether wrong answers are written out, for their F1; without, it is 0.
    """
    prompts = [{name: compose(method, item, profile) for name, method in methods.items()} for item in items]
    begun = [profile.encode(item.begun) for item in items]
    gold = [profile.encode(item.gold) for item in items]
    answers: dict[tuple[int, str], Answer] = {}
    # Greedy decoding writes the wanted answer as long as each of its tokens is the most likely one.
    said = {(n, name): item.gold for n, item in enumerate(items) for name in methods}
    for model, adapter in (models.plain, False), (models.adapted, True):
        mine = [place for place in said if methods[place[1]].adapter == adapter]
        if model is None or not mine:
            continue
        new = model.answers([Ask(prompts[n][name], begun[n], gold[n]) for n, name in mine])
        answers.update(zip(mine, new, strict=True))
        astray = {place: a for place, a in zip(mine, new, strict=True) if a.state is not None and generate}
        if astray:
            limits = [len(gold[n]) - a.agreed + EXTRA for (n, _), a in astray.items()]
            texts = model.generate([a.state for a in astray.values() if a.state], limits, profile.eos_token_ids)
            for (n, name), ids in zip(astray, texts, strict=True):
                said[n, name] = profile.tokenizer.decode([*gold[n][: answers[n, name].agreed], *ids])
    out: list[Scores] = [{} for _ in items]
    heads = [_common(p[FULL].plain_token_ids, p[NONE].plain_token_ids) for p in prompts]
    for n, name in said:
        computed = computed_tokens(prompts[n][name], heads[n])
        out[n][name] = _score(answers[n, name], answers[n, FULL], gold[n], said[n, name], items[n], computed)
    return out


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
    models: Models,
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
        models: that answer.
        profile: of the model.
        items: the questions.
        methods: by name.
        generate: see ``ask``.
        resume: a file that keeps each answered question; what it holds already isn't asked again.
        note: told about progress.
    """
    lines = resume.read_text(encoding="utf-8").splitlines() if resume and resume.exists() else []
    done = [{name: Score(*row) for name, row in json.loads(line).items()} for line in lines][: len(items)]
    at_once = 1 if models.plain.device == "cpu" else AT_ONCE
    for first in range(len(done), len(items), at_once):
        some = items[first : first + at_once]
        new = ask(models, profile, some, methods, generate=generate)
        done += new
        if resume:
            with resume.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(scores) + "\n" for scores in new)
        note(f"question {len(done)} of {len(items)} ({some[-1].kind})")
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
