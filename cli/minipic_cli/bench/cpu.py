# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""The CPU benchmark: stock vLLM and MiniPIC side by side, interleaved, as ratios with their spread."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from minipic_cli.lookups import passages
from minipic_sdk.errors import MiniPICError
from minipic_sdk.profile import ModelProfile

RESULTS: Final = Path("benchmarks/results/cpu.json")
_BATCHES: Final = (1, 8)

Note = Callable[[str], None]


class BenchmarkError(MiniPICError):
    """A benchmark process ended without an answer."""


class Engine:
    """A worker process and the lines that are exchanged with it."""

    def __init__(self, kind: str, model: Path, block_size: int, eager: bool) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in ("MINIPIC", "VLLM_PLUGINS")}
        environment |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "minipic_cli.bench.cpu_worker", kind, str(model), str(block_size)]
        self.kind = kind
        self.process = subprocess.Popen(
            [*command, "eager" if eager else "compiled"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if os.environ.get("MINIPIC_DEBUG") != "1" else None,
            text=True,
            env=environment,
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; raises BenchmarkError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"the {self.kind} engine ended (MINIPIC_DEBUG=1 shows its log)")
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


def run(
    *, repetitions: int = 9, block_size: int = 32, eager: bool = False, note: Note = lambda _: None
) -> dict[str, Any]:
    """Measure every row; about ten minutes on two cores.

    Args:
        repetitions: of each pair of measurements.
        block_size: tokens per KV block, the same for both engines.
        eager: without torch.compile, to start sooner.
        note: told what is being done.

    Returns:
        ``{"rows": [...]}``; ratio is in the row's own sense (see ``_row``).
    """
    from minipic_cli.models import default_model_dir

    model = default_model_dir()
    note("starting stock vLLM and MiniPIC")
    engines = [Engine(kind, model, block_size, eager) for kind in ("stock", "minipic")]
    try:
        for engine in engines:
            engine.answer()
        return {"rows": _measure(*engines, model, repetitions, block_size, note)}
    finally:
        for engine in engines:
            engine.close()


def _measure(
    stock: Engine, ours: Engine, model: Path, repetitions: int, block_size: int, note: Note
) -> list[dict[str, Any]]:
    profile = ModelProfile.from_directory(model, block_size=block_size)
    for i, text in enumerate(passages(3)):
        prompt = profile.encode(text)
        if stock.ask("greedy", prompt=prompt) != ours.ask("greedy", prompt=prompt):
            raise BenchmarkError(f"plain prompt {i}: greedy tokens differ from stock's")
    note("plain prefill and decode")
    prefill = _pairs(repetitions, lambda: (_s(ours, "prefill"), _s(stock, "prefill")))
    decode = {
        b: _pairs(repetitions, lambda b=b: (_s(ours, "decode", batch=b), _s(stock, "decode", batch=b)))
        for b in _BATCHES
    }
    worse = max(decode.values(), key=lambda pairs: statistics.median(a / b for a, b in pairs))
    note("questions over warmed documents in new orders")
    hit = _pairs(repetitions, lambda: (_s(ours, "new_order"), _s(stock, "same_order")))
    cold = _pairs(max(3, repetitions // 3), lambda: (_s(ours, "new_order"), _s(stock, "new_order")))
    return [
        _row("plain_prefill", prefill, inverse=True),
        _row("plain_decode", worse, inverse=True),
        _row("ttft_new_order_vs_stock", cold, inverse=True),
        _row("ttft_new_order_vs_hit", hit, inverse=False),
    ]


def _s(engine: Engine, do: str, **arguments: Any) -> float:
    return engine.ask(do, **arguments)["seconds"]


def _pairs(count: int, measure: Callable[[], tuple[float, float]]) -> list[tuple[float, float]]:
    measure()  # once to warm up
    return [measure() for _ in range(count)]


def _row(name: str, pairs: Sequence[tuple[float, float]], *, inverse: bool) -> dict[str, Any]:
    """A row of (ours, stock) seconds; the ratio is ours / stock, or stock / ours (a speed-up) when inverse."""
    ratios = sorted((b / a if inverse else a / b) for a, b in pairs)
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 4),
        "value": round(1000 * statistics.median(a for a, _ in pairs), 2),
        "baseline": round(1000 * statistics.median(b for _, b in pairs), 2),
        "unit": "ms; ratio is stock / MiniPIC" if inverse else "ms; ratio is MiniPIC / stock",
        "spread": [round(ratios[0], 4), round(ratios[-1], 4)],
        "repetitions": len(ratios),
        **_stamp(),
    }


def _stamp() -> dict[str, Any]:
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {name: _version(name) for name in ("minipic-sdk", "vllm-cpu", "torch")},
        "date": date.today().isoformat(),
        "command": "minipic " + " ".join(sys.argv[1:]),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "?"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def merge_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows into a results file, replacing those of the same name."""
    old: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {row["name"] for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [row for row in old if row["name"] not in fresh]
    path.write_text(json.dumps({"rows": [*kept, *rows]}, indent=2) + "\n")
