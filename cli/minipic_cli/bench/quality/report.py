"""The table and the plot."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

COLUMNS: Final = ("method", "computed", "exact", "F1", "logprob", "KL", "same token")


def table(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows under ``COLUMNS``, with 95 % intervals."""
    return [
        (
            row["method"],
            f"{row['computed'][0]:.0f}",
            _interval(row["exact"], 2),
            _interval(row["f1"], 2),
            _interval(row["logprob"], 2),
            _interval(row["kl"], 3),
            _interval(row["same"], 2),
        )
        for row in result["rows"]
    ]


def markdown(result: Mapping[str, Any]) -> str:
    """The table for documents."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in table(result)])


def plot(result: Mapping[str, Any], path: Path, note: Callable[[str], None]) -> str | None:
    """Quality against tokens computed; returns where it went, or ``None`` without matplotlib."""
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        note("no plot: matplotlib is not installed")
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    from minipic_cli.bench.quality.methods import ADAPTED, METHODS

    family_of = {name: method.family for name, method in {**METHODS, **ADAPTED}.items()}
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        family = family_of[row["method"]]
        if family not in ("full", "none"):
            families.setdefault(family, []).append(row)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for family, rows in families.items():
        x = [r["computed"][0] for r in rows]
        y = [r["kl"][0] for r in rows]
        bars = [[r["kl"][0] - r["kl"][1] for r in rows], [r["kl"][2] - r["kl"][0] for r in rows]]
        axes.errorbar(x, y, yerr=bars, fmt="o", capsize=3, label=family)
        for r, at in zip(rows, zip(x, y, strict=True), strict=True):
            axes.annotate(r["method"], at, xytext=(6, 3), textcoords="offset points", fontsize=7)
    full = next(r for r in result["rows"] if family_of[r["method"]] == "full")
    axes.set_xlabel(f"prompt tokens computed, everything cached (full attention: {full['computed'][0]:.0f})")
    axes.set_ylabel("KL from full attention, nats per token")
    axes.set_yscale("log")
    axes.set_title(f"{result['model']}, {result['items']} questions, 95 % intervals", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return str(path)


def _interval(values: list[float], digits: int) -> str:
    value, low, high = values
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
