"""``minipic bench quality``: what each layout costs in answers, and what it saves in tokens computed.

Every question is composed by the SDK under every layout and answered by a plain transformers model under that layout's
mask (masked.py), so the scores are those of the method, without an engine's rounding. docs/layouts.md tells the
results.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from minipic_cli.errors import CLIError
from minipic_sdk import ModelProfile

__all__ = ["RESULTS", "measure_gate", "run", "write_questions"]

RESULTS: Final = Path("benchmarks/results/quality.json")
ITEMS, QUICK_ITEMS = 240, 16


def run(
    *,
    model: Path | str | None = None,
    items: int | None = None,
    seed: int = 0,
    quick: bool = False,
    questions: Path | None = None,
    adapter: Path | None = None,
    device: str = "cpu",
    out: Path | None = None,
    resume: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Ask the questions and return the result; with ``out``, also write it there, and a plot beside it.

    Args:
        model: a model directory; by default the bundled model's.
        items: questions; by default 240, or 16 with ``quick``, or all that ``questions`` holds.
        seed: of the questions.
        quick: fewer questions and methods.
        questions: a file of ``write_questions``, to ask these instead.
        adapter: a LoRA adapter in peft's format, asked too.
        device: of torch.
        out: a JSON file.
        resume: a file that keeps answered questions, to go on from after an interruption.
        note: told about progress.

    Raises:
        CLIError: torch or transformers is missing.
    """
    from minipic_cli.bench.quality.questions import draw, items_of

    methods_of, measure = _modules()
    directory, profile = _model(model)
    if questions is None:
        drawn = draw(items or (QUICK_ITEMS if quick else ITEMS), seed)
    else:
        drawn = _read_questions(questions)
    asked = items_of(drawn)[:items]
    chosen = {n: methods_of.METHODS[n] for n in (methods_of.QUICK if quick else methods_of.METHODS)}
    if adapter is not None:
        chosen |= methods_of.ADAPTED
    note(f"{len(asked)} questions under {len(chosen)} methods, model {profile.model}")
    begun = time.monotonic()
    models = measure.Models(
        measure.MaskedModel(directory, device=device),
        None if adapter is None else measure.MaskedModel(directory, device=device, adapter=adapter),
    )
    answers = measure.ask_all(models, profile, asked, chosen, resume=resume, note=note)
    result: dict[str, Any] = {
        "benchmark": "quality",
        "model": profile.model,
        "adapter": None if adapter is None else adapter.name,
        "seed": drawn["seed"],
        "items": len(asked),
        "kinds": measure.counts(asked),
        "seconds": round(time.monotonic() - begun, 1),
        "rows": measure.summarise(asked, answers),
    }
    if out is not None:
        from minipic_cli.bench.quality.report import plot

        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        result["plot"] = plot(result, out.with_suffix(".png"), note)
    return result


def write_questions(path: Path, items: int = ITEMS, seed: int = 0) -> int:
    """Draw questions and keep them with their texts, to ask them on a machine that hasn't these; returns how many."""
    from minipic_cli.bench.quality.questions import draw

    drawn = draw(items, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(drawn), encoding="utf-8")
    return len(drawn["items"])


def measure_gate(
    model: Path | str | None = None,
    *,
    items: int = 24,
    seed: int = 1,
    device: str = "cpu",
    note: Callable[[str], None] = lambda _: None,
) -> Any:
    """The cheapest layout that leaves a model's answers alone, as a ``minipic_sdk.gate.Gate``; see gate.py.

    Args:
        model: a model directory; by default the bundled model's.
        items: questions; 24 take about three minutes for a 135M model on two CPU cores.
        seed: of the questions.
        device: of torch.
        note: told about progress.

    Raises:
        CLIError: torch or transformers is missing.
    """
    from minipic_cli.bench.quality.questions import build

    _, measure = _modules()
    from minipic_cli.bench.quality.gate import CANDIDATES, judge

    directory, profile = _model(model)
    models = measure.Models(measure.MaskedModel(directory, device=device))
    return judge(measure.ask_all(models, profile, build(items, seed), CANDIDATES, generate=False, note=note))


def _read_questions(path: Path) -> dict[str, Any]:
    try:
        drawn = json.loads(path.read_text(encoding="utf-8"))
        if drawn["items"] and drawn["shelves"]:
            return drawn
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CLIError(f"{path} holds no questions of `minipic bench questions`: {error!r}") from error
    raise CLIError(f"{path} holds no questions")


def _modules() -> tuple[Any, Any]:
    try:
        from minipic_cli.bench.quality import measure, methods
    except ModuleNotFoundError as error:
        raise CLIError(f"measuring quality needs {error.name}: install MiniPIC for a server (make setup)") from error
    return methods, measure


def _model(model: Path | str | None) -> tuple[Path, ModelProfile]:
    if model is None:
        from minipic_cli.models import ensure_default_model

        return Path(ensure_default_model()), ModelProfile.default()
    return Path(model), ModelProfile.from_directory(model)
