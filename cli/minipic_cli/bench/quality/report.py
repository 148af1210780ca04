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
    """Exact match and log probability against tokens computed; returns where it went, or ``None`` without matplotlib."""
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
        if family != "none":
            families.setdefault(family, []).append(row)
    figure, both = plt.subplots(1, 2, figsize=(13, 6.5), layout="constrained")
    for axes, (score, title) in zip(
        both, (("exact", "exact match"), ("logprob", "log probability per token")), strict=True
    ):
        points: list[tuple[float, float, str]] = []
        for family, rows in families.items():
            x, y = [r["computed"][0] for r in rows], [r[score][0] for r in rows]
            bars = [[r[score][0] - r[score][1] for r in rows], [r[score][2] - r[score][0] for r in rows]]
            axes.errorbar(x, y, yerr=bars, fmt="o", capsize=2, elinewidth=0.8, label=family)
            points += zip(x, y, (r["method"] for r in rows), strict=True)
        _label(axes, points)
        axes.set_xlabel("prompt tokens computed, everything cached")
        axes.set_ylabel(f"{title} of the wanted answer")
    both[0].legend(fontsize=8, loc="lower right")
    figure.suptitle(f"{result['model']}, {result['items']} questions, 95 % intervals", fontsize=11)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return str(path)


def _label(axes: Any, points: list[tuple[float, float, str]]) -> None:
    """Names beside the points, moved apart where many stand above one another."""
    low, high = map(float, axes.get_ylim())
    axes.set_xlim(0, 1.25 * axes.get_xlim()[1])
    free: dict[int, float] = {}  # by column: where the next name may stand
    for x, y, name in sorted(points, key=lambda p: p[1]):
        column = round(x / 25)
        at = max(y, free.get(column, low))
        free[column] = at + (high - low) / 38
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "grey"}
        axes.annotate(name, (x, y), xytext=(x + 14, at), fontsize=7, va="center", arrowprops=line)


def _interval(values: list[float], digits: int) -> str:
    value, low, high = values
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
