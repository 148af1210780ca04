# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Runs both engines, one after the other on the same machine, and writes the comparison."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from minipic_cli.bench.gpu.workload import LAYOUTS
from minipic_cli.bench.process import run_engine
from minipic_cli.bench.results import merge_rows

COMMAND = "minipic bench gpu"
# name: unit, which samples of MiniPIC, which of stock, whether the ratio is stock / MiniPIC
ROWS = {
    "plain_prefill": ("tokens/s", "prefill_tokens_per_s", "prefill_tokens_per_s", False),
    "ttft_8k_cold": ("ms", "ttft_8192_plain_ms", "ttft_8192_plain_ms", False),
    "ttft_32k_cold": ("ms", "ttft_32768_plain_ms", "ttft_32768_plain_ms", False),
    **{f"decode_b{b}": ("ms", f"decode_b{b}_ms", f"decode_b{b}_ms", False) for b in (1, 64, 256)},
    **{f"decode_spans_b{b}": ("ms", f"decode_spans_b{b}_ms", f"decode_b{b}_ms", False) for b in (1, 64, 256)},
    **{
        f"ttft_spans_{n // 1024}k_vs_hit": ("ms", f"ttft_{n}_new_order_ms", f"ttft_{n}_hit_ms", False)
        for n in (8192, 32768, 131072)
    },
    **{
        f"ttft_spans_{n // 1024}k_vs_stock": ("ms", f"ttft_{n}_new_order_ms", f"ttft_{n}_new_order_ms", True)
        for n in (8192, 32768, 131072)
    },
}
# the same, both of MiniPIC
LAYOUT_ROWS = {f"ttft_epic_{n}_vs_block": ("ms", f"ttft_{n}_epic_ms", f"ttft_{n}_block_ms", False) for n in LAYOUTS}


def run(
    out: Path,
    *,
    engines: Sequence[str] = ("stock", "minipic"),
    small: bool = False,
    gpus: int = 1,
    budget: float = 280.0,
    raw: Path | None = None,
) -> dict[str, Any]:
    """Measure, merge the rows into ``out`` (JSON) and draw a plot beside it.

    Args:
        out: where the rows go.
        engines: which to run now; raw samples of the others are taken from ``raw`` if they are there.
        small: a dry run on a tiny model.
        gpus: of tensor-parallel engines; the rows of several are named after their number.
        budget: seconds for each engine; what was measured by then counts.
        raw: directory of the raw samples; by default beside ``out``.

    Returns:
        What was written: ``{"rows": [...]}``.
    """
    raw = raw or out.parent / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for kind in engines:
        _measure(kind, raw / f"{kind}.json", small, gpus, budget)
    found = {
        k: json.loads((raw / f"{k}.json").read_text()) for k in ("stock", "minipic") if (raw / f"{k}.json").exists()
    }
    result = {"rows": rows(found.get("minipic", {}), found.get("stock", {}))}
    if gpus > 1:
        result["rows"] = [{**row, "name": f"{row['name']}_{gpus}gpus"} for row in result["rows"]]
    merge_rows(out, result["rows"])
    if gpus == 1:
        plot(found, out.with_suffix(".svg"))
    return result


def _measure(kind: str, path: Path, small: bool, gpus: int, budget: float) -> None:
    path.unlink(missing_ok=True)
    how = ["--small"] if small else ["--gpus", str(gpus)]
    arguments = ("minipic_cli.bench.gpu.engine", kind, str(path), *how)
    run_engine(kind, arguments, budget)


def rows(ours: dict[str, Any], stock: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per comparison that both engines have samples for, and the memory spans need."""
    mine, theirs = ours.get("samples", {}), stock.get("samples", {})
    facts = ours.get("facts", {})
    about = {
        "machine": facts.get("machine"),
        "versions": facts.get("versions"),
        "date": time.strftime("%Y-%m-%d"),
        "command": COMMAND,
    }
    out: list[dict[str, Any]] = []
    compared = [(theirs, row) for row in ROWS.items()] + [(mine, row) for row in LAYOUT_ROWS.items()]
    for other, (name, (unit, a, b, inverse)) in compared:
        if a not in mine or b not in other:
            continue
        value, baseline = median(mine[a]), median(other[b])
        ratio = baseline / value if inverse else value / baseline
        spread = ratio * (_spread(mine[a]) ** 2 + _spread(other[b]) ** 2) ** 0.5
        out.append(
            {
                "name": name,
                "ratio": round(ratio, 4),
                "value": round(value, 4),
                "baseline": round(baseline, 4),
                "unit": unit,
                "spread": [round(ratio - spread, 4), round(ratio + spread, 4)],
                **about,
            }
        )
    if memory := facts.get("memory"):
        share = memory["spans"] / memory["kv_cache"]
        sizes = {"value": memory["spans"], "baseline": memory["kv_cache"], "unit": "bytes"}
        spread = [round(share, 4)] * 2
        out.append({"name": "scratch_memory", "ratio": spread[0], **sizes, "spread": spread, **about})
    return out


def _spread(samples: Sequence[float]) -> float:
    """Half the interquartile range over the median."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / median(samples)


def plot(found: dict[str, Any], path: Path) -> None:
    """TTFT against context length, log scale; nothing where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    lines = {
        "stock vLLM, documents in a new order": ("stock", "new_order_ms"),
        "stock vLLM, full prefix hit": ("stock", "hit_ms"),
        "MiniPIC, cached documents in a new order": ("minipic", "new_order_ms"),
        "MiniPIC, documents not cached": ("minipic", "spans_cold_ms"),
    }
    axes = Figure(figsize=(7, 4.5), layout="constrained").subplots()
    for label, (kind, suffix) in lines.items():
        samples = found.get(kind, {}).get("samples", {})
        points = [
            (n, median(samples[f"ttft_{n}_{suffix}"])) for n in (8192, 32768, 131072) if f"ttft_{n}_{suffix}" in samples
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens of context", ylabel="time to first token, ms")
    axes.set_xticks([8192, 32768, 131072], ["8k", "32k", "128k"])
    axes.minorticks_off()
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    axes.figure.savefig(path)


def main() -> None:
    """``python -m minipic_cli.bench.gpu.harness OUT [--small] [--only KIND] [--gpus N] [--budget S]``, without the CLI around it."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=["stock", "minipic"])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--budget", type=float, default=280.0)
    a = parser.parse_args()
    engines = (a.only,) if a.only else ("stock", "minipic")
    for row in run(a.out, engines=engines, small=a.small, gpus=a.gpus, budget=a.budget)["rows"]:
        low, high = row["spread"]
        figures = f"{row['ratio']:8.3f} {low:8.3f} to {high:.3f}   {row['value']:12.2f} {row['baseline']:12.2f}"
        print(f"{row['name']:28} {figures} {row['unit']}")


if __name__ == "__main__":
    main()
