"""How fast `minipic warm` reads, cuts and tokenises, and how much memory that takes: `python benchmarks/corpus/rate.py`.

Prints JSON. The corpus is the text of Python's own documentation strings, repeated with different numbers in it, so that no
cache of tokens helps. Rates are of processor time on one core: other load on the machine doesn't count.
"""

import argparse
import gc
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.sources import Scope, walk
from minipic_cli.corpus.warming import Warmer
from minipic_sdk import ModelProfile, SpansReport, SpanStatus
from minipic_sdk.wire import SpanQuery


def prose() -> str:
    """Paragraphs of documentation, from the docstrings of the standard library."""
    import argparse as a
    import asyncio
    import collections
    import decimal
    import logging
    import pathlib
    import subprocess
    import typing

    modules = (a, asyncio, collections, decimal, logging, pathlib, subprocess, typing, json, tempfile)
    docs = [
        doc
        for module in modules
        for owner in (module, *vars(module).values())
        for doc in (getattr(owner, "__doc__", None), *_members(owner))
        if isinstance(doc, str) and len(doc) > 80
    ]
    return "\n\n".join(dict.fromkeys(docs))


def _members(owner: object) -> Iterator[str | None]:
    if isinstance(owner, type):
        for member in vars(owner).values():
            yield getattr(member, "__doc__", None)


def write_corpus(folder: Path, megabytes: float, file_bytes: int) -> int:
    """Text files of about ``file_bytes`` each; returns bytes in all."""
    text, written, number = prose(), 0, 0
    while written < megabytes * 1e6:
        parts: list[str] = []
        size = 0
        while size < file_bytes:
            number += 1
            # Other words at other places each time: a tokenizer's own cache of words helps as it does in real text.
            start = number * 7919 % (len(text) - 5000)
            parts.append(f"## Section {number}\n\n{text[start : start + 4000]}")
            size += len(parts[-1].encode())
        data = "\n\n".join(parts).encode()
        (folder / f"{number:07}.md").write_bytes(data)
        written += len(data)
    return written


def measure(megabytes: float, file_bytes: int, profile: ModelProfile) -> dict[str, float]:
    """One run, with a server that answers at once."""

    def send(queries: Sequence[SpanQuery]) -> SpansReport:
        return SpansReport(tuple(SpanStatus("", "computed", None, 0, 0) for _ in queries))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "corpus")
        folder.mkdir()
        size = write_corpus(folder, megabytes, file_bytes)
        out: dict[str, float] = {"corpus_bytes": size}
        for run in ("first", "unchanged"):
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            with Manifest(Path(name, "corpus.db")) as manifest:
                warmer = Warmer(manifest, profile, send, chunk_tokens=2048)
                warmer.run(walk([str(folder)]), Scope((str(folder),)))
            out[f"{run}_cpu_s"] = time.process_time() - cpu
            out[f"{run}_wall_s"] = time.perf_counter() - wall
            out[f"{run}_mb_per_cpu_s"] = size / 1e6 / out[f"{run}_cpu_s"]
            if run == "first":
                past = time.time() - 100
                for path in folder.iterdir():
                    os.utime(path, (past, past))
                with Manifest(Path(name, "corpus.db")) as manifest:  # note the new times
                    Warmer(manifest, profile, send, chunk_tokens=2048).run(walk([str(folder)]), Scope((str(folder),)))
        out["tokens"], out["chunks"] = warmer.totals.tokens, warmer.totals.chunks
        out["manifest_bytes"] = Path(name, "corpus.db").stat().st_size
        out["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return out


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[4.0, 32.0], help="corpus sizes")
    parser.add_argument("--file-bytes", type=int, default=50_000)
    arguments = parser.parse_args()
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # one core
    profile = ModelProfile.default()
    profile.encode("load it")
    rows = [{"megabytes": m, **measure(m, arguments.file_bytes, profile)} for m in arguments.megabytes]
    machine = {"machine": platform.machine(), "python": platform.python_version(), "cpus": os.cpu_count()}
    json.dump(
        {"model": profile.model, **machine, "file_bytes": arguments.file_bytes, "runs": rows}, sys.stdout, indent=2
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
