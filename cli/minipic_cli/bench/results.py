"""What the benchmarks share: rows of the results files, where they come from, merging them in, and failing."""

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from minipic_sdk.errors import MiniPICError

Note = Callable[[str], None]
"""Told what is being done."""

Keep = Callable[[Sequence[dict[str, Any]]], None]
"""Given rows as soon as they are there."""


class BenchmarkError(MiniPICError):
    """A measurement failed, or its process ended without an answer."""


def stamp(*packages: str) -> dict[str, Any]:
    """Machine, versions of ``packages``, date and command."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {name: _version(name) for name in packages},
        "date": date.today().isoformat(),
        "command": "minipic " + " ".join(sys.argv[1:]),
    }


def merge_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows into a results file, replacing those of the same name."""
    old: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {row["name"] for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [row for row in old if row["name"] not in fresh]
    path.write_text(json.dumps({"rows": [*kept, *rows]}, indent=2) + "\n")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
