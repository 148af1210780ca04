"""``minipic bench trace``: RAG traces on stock vLLM and on MiniPIC, one after the other with the same settings.

python -m minipic_cli.bench.trace --machine h200 --stages fit,warm,off,empty,barrier,slope
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from minipic_cli.bench.process import run_engine
from minipic_cli.bench.results import Note
from minipic_cli.bench.trace.rows import rows, spnl
from minipic_cli.bench.trace.shapes import Vocabulary, make
from minipic_sdk.errors import ProfileError

RESULTS: Final = {"cpu": Path("benchmarks/results/cpu.json"), "h200": Path("benchmarks/results/h200.json")}
STAGES: Final = ("fit", "warm", "off", "empty", "barrier", "large", "large_barriers", "large_batches", "slope")
_MINIPIC_ONLY: Final = ("off", "empty", "barrier", "large_barriers", "large_batches", "slope")


@dataclass(frozen=True, slots=True)
class Machine:
    """Engine options and vocabulary of one kind of machine."""

    options: dict[str, Any]
    vocabulary: Vocabulary
    kv_bytes: int  # keys and values of one token
    lengths: tuple[int, ...]  # of uncached_span_slope
    environment: dict[str, str] = field(default_factory=dict[str, str])
    stock_options: dict[str, Any] = field(default_factory=dict[str, Any])  # where stock can't have MiniPIC's


def h200(kv_tokens: int = 800_000) -> Machine:
    """Llama-3-8B's shape with made-up weights."""
    from minipic_cli.bench.gpu.workload import CONTROL, Scale, engine_options

    options = {**engine_options(Scale()), "num_gpu_blocks_override": kv_tokens // 16}
    lengths = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    return Machine(options, Vocabulary(1000, 127_000, CONTROL), 2 * 32 * 8 * 128 * 2, lengths)


def cpu(kv_tokens: int = 65_536, model: str | None = None, eager: bool = False) -> Machine:
    """The bundled model, or a directory with another one."""
    from minipic_sdk.profile import ModelProfile

    if model is None:
        from minipic_cli.models import default_model_dir

        model = str(default_model_dir())
    config = json.loads((Path(model) / "config.json").read_text())
    try:
        control = tuple(ModelProfile.from_directory(model, block_size=16).control_tokens)
    except (OSError, ProfileError):
        control = tuple(config["vocab_size"] - i for i in (3, 2, 1))  # a bare directory, without a tokenizer
    options = {
        "model": model,
        "block_size": 16,
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks_override": kv_tokens // 16,
        "enable_prefix_caching": True,
        "enforce_eager": eager,
        "disable_log_stats": True,
    }
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    words = Vocabulary(10, min(config["vocab_size"] - 10, 40_000), control)  # pyright: ignore[reportArgumentType]
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "6"}
    kv_bytes = 2 * config["num_hidden_layers"] * heads * width * 4
    coarse = {
        "block_size": 32,
        "num_gpu_blocks_override": kv_tokens // 32,
    }  # stock CPU attention takes no smaller blocks
    return Machine(options, words, kv_bytes, (512, 1024, 2048), environment, coarse)


def run(
    machine: Machine,
    *,
    shape: str = "2wiki",
    prompts: int = 800,
    stages: Sequence[str] = ("fit", "warm", "off", "empty", "barrier", "slope"),
    repeats: int = 2,
    engines: Sequence[str] = ("stock", "minipic"),
    budget: float = 290.0,
    raw: Path | None = None,
    note: Note = lambda _: None,
) -> dict[str, Any]:
    """Run both engines and compare.

    Args:
        machine: options of the engines; see ``h200`` and ``cpu``.
        shape: of the trace: "2wiki", "long" or "agent".
        prompts: of the trace that fits the cache; the large one is sized by the cache.
        stages: of ``STAGES``, in this order.
        repeats: traces of other seeds (fit, off) or orders (warm) per stage.
        engines: which to run now; raw results of the other are taken from ``raw`` if they are there.
        budget: seconds for each engine; what was measured by then counts.
        raw: directory of the raw results.
        note: told what is being done.

    Returns:
        ``{"rows": [...], "bound": {...}, "spnl_model": {...}}``.
    """
    raw = raw or Path(tempfile.mkdtemp(prefix="minipic-trace-"))
    raw.mkdir(parents=True, exist_ok=True)
    traces = [make(shape, prompts, machine.vocabulary, seed=seed) for seed in range(repeats)]
    words = machine.vocabulary
    for kind in engines:
        plan = {
            "kind": kind,
            "options": {**machine.options, **(machine.stock_options if kind == "stock" else {})},
            "vocabulary": {"low": words.low, "high": words.high, "control": list(words.control)},
            "shape": shape,
            "prompts": prompts,
            "repeats": repeats,
            "lengths": machine.lengths,
            "stages": [s for s in stages if kind == "minipic" or s not in _MINIPIC_ONLY],
        }
        if plan["stages"]:
            note(f"{kind}: {', '.join(plan['stages'])}")
            _measure(plan, raw, machine.environment, budget)
    found = {k: json.loads(p.read_text()) for k in ("stock", "minipic") if (p := raw / f"{k}.json").exists()}
    bounds = [trace.bound(machine.options["block_size"]) for trace in traces]
    bound = {k: round(sum(b[k] for b in bounds) / len(bounds), 4) for k in bounds[0]}
    result: dict[str, Any] = {"rows": [], "bound": bound}
    if len(found) == 2:
        command = f"minipic bench trace --shape {shape} --prompts {prompts} --stages {','.join(stages)}"
        result["rows"] = rows(found["stock"], found["minipic"], bound, command)
        result["spnl_model"] = spnl(traces[0], found["stock"], found["minipic"], machine.kv_bytes)
    result["raw"] = found
    return result


def _measure(plan: dict[str, Any], raw: Path, environment: dict[str, str], budget: float) -> None:
    kind = plan["kind"]
    out, written = raw / f"{kind}.json", raw / f"{kind}-plan.json"
    out.unlink(missing_ok=True)
    written.write_text(json.dumps(plan))
    arguments = ("minipic_cli.bench.trace.worker", str(written), str(out))
    run_engine(kind, arguments, budget, environment)
