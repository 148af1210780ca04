"""From both engines' raw runs to the rows of issue 4."""

import math
import time
from collections.abc import Sequence
from itertools import pairwise, product
from statistics import median
from typing import Any

from minipic_cli.bench.trace.shapes import Trace

Raw = dict[str, Any]
_DUPLICATES = ("computed_twice", "in_place", "last_block_again", "repeated_in_prompt")


def rows(stock: Raw, ours: Raw, bound: dict[str, float], command: str) -> list[dict[str, Any]]:
    """One row per comparison that both engines have runs for."""
    about = {
        "machine": ours["facts"].get("machine"),
        "versions": ours["facts"].get("versions"),
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
    }
    out: list[dict[str, Any]] = []

    def row(
        name: str, mine: Sequence[float], theirs: Sequence[float], unit: str = "samples/s", by: float = 1.0
    ) -> None:
        if not mine or not theirs:
            return
        value, baseline = median(mine), median(theirs)
        pairs = zip(mine, theirs, strict=False) if len(mine) == len(theirs) else product(mine, theirs)
        ratios = sorted(a / b / by for a, b in pairs)
        figures = {"ratio": value / baseline / by, "value": value, "baseline": baseline}
        rounded = {k: round(v, 4) for k, v in figures.items()}
        spread = [round(ratios[0], 4), round(ratios[-1], 4)]
        out.append({"name": name, **rounded, "unit": unit, "spread": spread, **about})

    fit, plain = _speeds(ours, "fit"), _speeds(stock, "fit")
    row("trace_2wiki_vs_stock", fit, plain)
    row(
        "trace_2wiki_vs_bound", fit, plain, "samples/s; ratio is the speed-up's share of the bound", bound["over_stock"]
    )
    row("trace_2wiki_empty_anchor_vs_stock", _speeds(ours, "empty"), plain)
    row("trace_2wiki_vs_barrier", fit, _speeds(ours, "barrier"))
    row("trace_off_vs_stock", _speeds(ours, "off"), plain)
    row("trace_warm_vs_stock", _speeds(ours, "warm"), _speeds(stock, "warm"))
    large = _speeds(ours, "large")
    row("trace_2wiki_large_vs_stock", large, _speeds(stock, "large"))
    barriers = [_speeds(ours, f"large_barrier_{kind}") for kind in ("one", "batches")]
    row("trace_2wiki_large_vs_barrier", large, max(barriers, key=lambda b: median(b) if b else 0.0))
    out += [{**r, **about} for r in (_duplicates(ours), _slope(ours)) if r is not None]
    return out


def spnl(trace: Trace, stock: Raw, ours: Raw, kv_bytes: int) -> dict[str, float] | None:
    """Samples/s of a server that copies and turns each cached span per request, by what it must at least do.

    Its spans are computed once, at the speed at which stock computes tokens; each use of a span reads and writes its
    keys and values once, at the speed of a plain copy. Scheduling, barriers and the cache that copies take are free.
    """
    runs = stock["stages"].get("fit")
    if not runs:
        return None
    per_token = median(r["seconds"] / r["computed"] for r in runs)
    copied = sum(len(s) for ask in trace.asks for s in ask.spans)
    compute = trace.bound(16)["once"] * per_token
    copy = 2 * copied * kv_bytes / (ours["facts"]["copy_gb_s"] * 1e9)
    return {
        "samples_per_s": round(len(trace.asks) / (compute + copy), 3),
        "compute_s": round(compute, 3),
        "copy_s": round(copy, 3),
    }


def _speeds(raw: Raw, stage: str) -> list[float]:
    return [run["per_s"] for run in raw.get("stages", {}).get(stage, [])]


def _duplicates(ours: Raw) -> dict[str, Any] | None:
    runs = [run["counts"] for stage in ours["stages"].values() for run in stage if run.get("counts")]
    if not runs:
        return None
    twice, *apart = (sum(run[name] for run in runs) for name in _DUPLICATES)
    queries = sum(run["queries"] for run in runs)
    figures = {"ratio": twice, "value": twice, "baseline": queries, "unit": "spans; baseline is spans asked for"}
    return {
        "name": "duplicate_span_prefills",
        **figures,
        "spread": [twice, twice],
        "apart": dict(zip(_DUPLICATES[1:], apart, strict=True)),
    }


def _slope(ours: Raw) -> dict[str, Any] | None:
    points = sorted(
        (int(stage.split()[1]), min(run["seconds"] for run in runs))
        for stage, runs in ours["stages"].items()
        if stage.startswith("slope ")
    )
    if len(points) < 2:
        return None
    logs = [(math.log(n), math.log(s)) for n, s in points]
    mean_x, mean_y = (sum(p[i] for p in logs) / len(logs) for i in (0, 1))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    local = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(logs)]
    figures = {
        "ratio": round(slope, 4),
        "value": round(1e3 * points[-1][1], 2),
        "baseline": round(1e3 * points[0][1], 2),
    }
    return {
        "name": "uncached_span_slope",
        **figures,
        "unit": f"ms at {points[-1][0]} and {points[0][0]} tokens; ratio is the log-log slope",
        "spread": [round(min(local), 4), round(max(local), 4)],
        "points": [[n, round(1e3 * s, 3)] for n, s in points],
    }
