"""The SDK benchmark: what the client's side costs a request, an import and a corpus; no server, no model.

Each measurement runs in a process of its own, on one core. All times are of processor time, since nothing waits for
anything: other load on the machine counts less.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from minipic_cli.bench.results import BenchmarkError, Keep, Note, stamp
from minipic_cli.bench.sdk.corpora import DOCUMENT_TOKENS, DOCUMENTS, write_file, write_files, write_lines

RESULTS: Final = Path("benchmarks/results/sdk.json")
HEAVY: Final = ("torch", "vllm", "transformers", "langchain_core", "llama_index", "haystack", "openai", "numpy")
_IMPORT: Final = (
    "import sys, time; begin = time.process_time(); {code}; taken = time.process_time() - begin; "
    "import json; print(json.dumps(dict(seconds=taken, loaded=sorted(set(sys.modules) & set({heavy!r})))))"
)


class Sizes(NamedTuple):
    """How much is measured; sizes in megabytes."""

    requests: int = 400
    files: float = 8
    file: float = 20
    lines: float = 5
    many_lines: float = 50


SMALL: Final = Sizes(requests=4, files=0.1, file=0.1, lines=0.02, many_lines=0.05)


def run(sizes: Sizes, repetitions: int, note: Note, keep: Keep) -> dict[str, Any]:
    """Measure everything.

    Args:
        sizes: how much.
        repetitions: of every measurement of imports and corpora.
        note: told what is being done.
        keep: given rows as soon as they are there.

    Returns:
        ``{"rows": [...]}``; in a row ``value`` has the goal, ``baseline`` is the same without us, ``spread`` is that of
        ``ratio``.

    Raises:
        BenchmarkError: a measurement's process failed, or the import is not light.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="minipic-bench-") as name:
        for what, measure in _measurements(Path(name), sizes, repetitions):
            note(what)
            rows.append(measure())
            keep(rows[-1:])
    return {"rows": rows}


def _measurements(folder: Path, sizes: Sizes, repetitions: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What is measured, and how; corpora are written as they are needed."""
    yield (
        f"{sizes.requests} requests over {DOCUMENTS} documents of {DOCUMENT_TOKENS} tokens",
        lambda: _requests(sizes.requests),
    )
    for row, code, goal in (
        ("sdk_import", "import minipic_sdk", "at most 150 ms"),
        ("sdk_import_used", "from minipic_sdk import Document, MiniPIC, Prompt; MiniPIC()", "none"),
    ):
        yield code, partial(_import, row, code, goal, repetitions)
    for row, size, write in (
        ("sdk_warm_files", sizes.files, write_files),
        ("sdk_warm_file", sizes.file, write_file),
        ("sdk_warm_jsonl", sizes.lines, write_lines),
    ):
        yield f"{row}: {size:g} MB", partial(_rate, row, write(folder / row, size), repetitions)
    few, many = (write_lines(folder / f"lines-{size:g}", size) for size in (sizes.lines, sizes.many_lines))
    yield f"memory for {sizes.lines:g} and {sizes.many_lines:g} MB", lambda: _memory(few, many, repetitions)


def _requests(count: int) -> dict[str, Any]:
    found = _worker("requests", str(count))
    extra = [1e3 * (ours - bare) for ours, bare in found["pairs"]]
    return {
        **_figures(
            "sdk_request_overhead",
            statistics.median(extra),
            statistics.median(1e3 * bare for _, bare in found["pairs"]),
            [ours / bare for ours, bare in found["pairs"]],
            "ms per request on top of a bare httpx post of the same body; ratio is SDK / bare",
        ),
        "value_spread": _spread(extra),
        "compose_ms": round(1e3 * statistics.median(found["compose"]), 3),
        "goal": "at most 1 ms",
    }


def _import(name: str, code: str, goal: str, repetitions: int) -> dict[str, Any]:
    """An import in a fresh process, against that of httpx."""
    pairs: list[tuple[float, float]] = []
    for _ in range(repetitions + 1):  # the first one reads from disk
        ours, theirs = (_python("-c", _IMPORT.format(code=c, heavy=HEAVY)) for c in (code, "import httpx"))
        if ours["loaded"]:
            raise BenchmarkError(f"`{code}` loads {', '.join(ours['loaded'])}")
        pairs.append((1e3 * ours["seconds"], 1e3 * theirs["seconds"]))
    pairs = pairs[1:]
    return {
        **_figures(
            name,
            statistics.median(ours for ours, _ in pairs),
            statistics.median(theirs for _, theirs in pairs),
            [ours / theirs for ours, theirs in pairs],
            f"ms of `{code}`; ratio is to `import httpx`",
        ),
        "goal": goal,
    }


def _rate(name: str, corpus: Path, repetitions: int) -> dict[str, Any]:
    """How fast a corpus is read, cut, tokenised, recorded and sent, against the bare tokenizer."""
    pairs = [(_worker("warm", str(corpus)), _worker("encode", str(corpus))) for _ in range(repetitions)]
    rates = [tuple(m["bytes"] / 1e6 / m["cpu_seconds"] for m in pair) for pair in pairs]
    ours = pairs[0][0]
    return {
        **_figures(
            name,
            statistics.median(r[0] for r in rates),
            statistics.median(r[1] for r in rates),
            [r[0] / r[1] for r in rates],
            "MB/s a core; ratio is to the tokenizers package alone",
        ),
        "value_spread": _spread([r[0] for r in rates]),
        "goal": "at least 1 MB/s",
        "ms_per_document": round(1e3 * statistics.median(p[0]["cpu_seconds"] for p in pairs) / ours["documents"], 3),
        **{k: ours[k] for k in ("bytes", "documents", "chunks", "tokens")},
    }


def _memory(few: Path, many: Path, repetitions: int) -> dict[str, Any]:
    pairs = [tuple(_worker("warm", str(path))["peak_mib"] for path in (many, few)) for _ in range(repetitions)]
    sizes = [round(path.stat().st_size / 1e6, 1) for path in (many, few)]
    return {
        **_figures(
            "sdk_warm_memory",
            statistics.median(m for m, _ in pairs),
            statistics.median(f for _, f in pairs),
            [m / f for m, f in pairs],
            f"MiB of peak memory for {sizes[0]:g} MB of JSON lines; baseline and ratio: for {sizes[1]:g} MB",
        ),
        "goal": "flat in the size of the corpus",
    }


def _figures(name: str, value: float, baseline: float, ratios: Sequence[float], unit: str) -> dict[str, Any]:
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 4),
        "value": round(value, 3),
        "baseline": round(baseline, 3),
        "unit": unit,
        "spread": _spread(ratios),
        "repetitions": len(ratios),
        "load": round(os.getloadavg()[0], 1),
        **stamp("minipic-sdk", "httpx", "tokenizers"),
    }


def _spread(values: Sequence[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


def _worker(what: str, argument: str) -> dict[str, Any]:
    return _python("-m", "minipic_cli.bench.sdk.worker", what, argument)


def _python(*arguments: str) -> dict[str, Any]:
    """The JSON that a fresh interpreter prints last."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MINIPIC_")}
    one_core = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=kept | one_core, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{arguments[1]} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
