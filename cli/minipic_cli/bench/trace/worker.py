"""One engine's runs of the traces, in a process of its own: ``python -m minipic_cli.bench.trace.worker PLAN OUT``.

PLAN is JSON: the kind of engine, vLLM's arguments, the vocabulary, and which stages to run. Raw results go to OUT after
every stage, so that a run that is cut short still tells what it measured.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minipic_cli.bench.trace.shapes import ANCHOR, Ask, Trace, Vocabulary, make, metadata, that_exceeds

BARRIER_SHARE = 0.8  # of the cache that a batch of the batched barrier may fill


class Worker:
    """A vLLM engine and the stages."""

    def __init__(self, plan: dict[str, Any], out: Path) -> None:
        self.plan, self.out = plan, out
        self.spans = plan["kind"] == "minipic"
        words = plan["vocabulary"]
        self.words = Vocabulary(words["low"], words["high"], tuple(words["control"]))
        self.block: int = plan["options"]["block_size"]
        self.stages: dict[str, list[dict[str, Any]]] = {}
        self.facts: dict[str, Any] = {"kind": plan["kind"]}
        self.llm: Any = None

    def start(self) -> None:
        """Start the engine; the baseline must be stock (I10)."""
        options = dict(self.plan["options"])
        if self.spans:
            from minipic_server import engine_kwargs

            options = engine_kwargs(**options, control_tokens=self.words.control)
        import torch
        import vllm

        begin = time.perf_counter()
        self.llm = vllm.LLM(**options)
        config = self.llm.llm_engine.vllm_config
        scheduler = str(config.scheduler_config.scheduler_cls)
        worker, backend = config.parallel_config.worker_cls, str(config.attention_config.backend)
        if not self.spans and ("minipic" in f"{scheduler}{worker}".lower() or "MINIPIC" in os.environ):
            raise RuntimeError(f"the baseline is not stock: {worker}, {backend}, {scheduler}")
        cuda = torch.cuda.is_available()
        self.facts |= {
            "start_s": round(time.perf_counter() - begin, 1),
            "machine": torch.cuda.get_device_name() if cuda else f"cpu, {os.cpu_count()} cores",
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
            "backend": backend,
            "kv_tokens": config.cache_config.num_gpu_blocks * self.block,
            "copy_gb_s": _copy_speed(cuda),
        }

    def once(self, name: str, prompts: Sequence[list[int]], meta: dict[str, Any] | None) -> dict[str, Any]:
        """All prompts at once, one generated token each; what it took is added to the stage's samples."""
        counts = self.counts()
        took, outs = self.generate(prompts, meta)
        cached = sum(o.num_cached_tokens or 0 for o in outs)
        sample = {
            "prompts": len(prompts),
            "seconds": round(took, 4),
            "per_s": round(len(prompts) / took, 4),
            "computed": sum(map(len, prompts)) - cached,
            "counts": {k: v - counts[k] for k, v in self.counts().items()} if self.spans else {},
        }
        self.stages.setdefault(name, []).append(sample)
        self.out.write_text(json.dumps({"facts": self.facts, "stages": self.stages}))
        print(self.plan["kind"], name, sample, file=sys.stderr, flush=True)
        return sample

    def generate(self, prompts: Sequence[list[int]], meta: dict[str, Any] | None) -> tuple[float, list[Any]]:
        """Seconds, and vLLM's outputs."""
        from vllm import SamplingParams

        extra = {"extra_args": {"minipic": json.dumps(meta)}} if meta is not None else {}
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, **extra)  # pyright: ignore[reportArgumentType]
        inputs = [{"prompt_token_ids": p} for p in prompts]
        begin = time.perf_counter()
        outs = self.llm.generate(inputs, params, use_tqdm=False)
        return time.perf_counter() - begin, outs

    def counts(self) -> dict[str, int]:
        """The scheduler's counters, for engines with spans."""
        counts = self.ask("stats", None) if self.spans else {}
        return {k: v for k, v in counts.items() if isinstance(v, int) and "blocks" not in k}

    def ask(self, operation: str, payload: Any) -> Any:
        """A question to the scheduler, wherever it runs."""
        core = self.llm.llm_engine.engine_core
        if hasattr(core, "call_utility"):
            return core.call_utility("minipic", operation, payload)
        return core.engine_core.minipic(operation, payload)

    def reset(self) -> None:
        """An empty cache."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be reset")

    def throughput(self, name: str, trace: Trace, *, keep: bool = False) -> None:
        """The trace, from an empty cache unless ``keep``; as spans where the engine has them."""
        if not keep:
            self.reset()
        if self.spans:
            self.once(name, self.physical(trace.asks), metadata(trace.asks[0].head, ANCHOR))
        else:
            self.once(name, [ask.plain() for ask in trace.asks], None)

    def physical(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Prompts with spans."""
        return [ask.physical(self.words.control, self.block) for ask in asks]

    def barrier(self, name: str, trace: Trace, capacity: float) -> None:
        """Spans first, then prompts, in batches whose documents and prompts fit ``capacity`` tokens."""
        self.reset()
        meta = metadata(trace.asks[0].head, ANCHOR)
        took = 0.0
        computed = 0
        for batch in self._batches(trace.asks, capacity):
            head = trace.asks[0].head[:ANCHOR]
            documents = list(dict.fromkeys(s for ask in batch for s in ask.spans))
            alone = self.physical([Ask(head, (d,), ()) for d in documents])
            alone = [[*p, *[self.words.control[2]] * (-len(p) % self.block)] for p in alone]
            chains = [{"ids": p[self.block :], "anchor": list(head), "salt": None} for p in alone]
            begin = time.perf_counter()
            found = self.ask("lookup", chains)
            missing = [p for p, (_, blocks, there, *_) in zip(alone, found, strict=True) if there < blocks]
            for prompts in (missing, self.physical(batch)):
                _, outs = self.generate(prompts, meta) if prompts else (0.0, [])
                computed += sum(map(len, prompts)) - sum(o.num_cached_tokens or 0 for o in outs)
            took += time.perf_counter() - begin
        n = len(trace.asks)
        sample = {"prompts": n, "seconds": round(took, 4), "per_s": round(n / took, 4), "computed": computed}
        self.stages.setdefault(name, []).append(sample)
        self.out.write_text(json.dumps({"facts": self.facts, "stages": self.stages}))
        print(self.plan["kind"], name, sample, file=sys.stderr, flush=True)

    def _batches(self, asks: Sequence[Ask], capacity: float) -> list[list[Ask]]:
        batches: list[list[Ask]] = [[]]
        size, seen = 0, set[tuple[int, ...]]()
        for ask in asks:
            fresh = set(ask.spans) - seen
            more = sum(len(s) + self.block for s in fresh) + sum(map(len, ask.dependent)) + self.block
            if size + more > capacity and batches[-1]:
                batches.append([])
                size, seen = 0, set()
                more = ask.visible + self.block * len(ask.spans)
            batches[-1].append(ask)
            seen |= set(ask.spans)
            size += more
        return batches

    def slope(self, lengths: Sequence[int]) -> None:
        """Seconds to compute prompts of uncached spans, by their total length."""
        for n in lengths:
            for i in range(3):
                shape, prompts = ("long", 4 + n // 4000) if n >= 16_000 else ("2wiki", 8 + n // 250)
                trace = make(shape, prompts, self.words, seed=1000 + n + i)
                spans = trace.documents()
                parts: list[tuple[int, ...]] = []
                while sum(map(len, parts)) < n and spans:
                    parts.append(spans.pop()[: n - sum(map(len, parts))])
                ask = Ask(trace.asks[0].head, tuple(p for p in parts if p), ((7,),))
                self.reset()
                self.once(f"slope {n}", self.physical([ask]), metadata(ask.head, ANCHOR))

    def run(self) -> None:
        """The stages that were asked for."""
        self.start()
        size = self.plan
        traces = [make(size["shape"], size["prompts"], self.words, seed=seed) for seed in range(size["repeats"])]
        self.generate([ask.plain() for ask in make("2wiki", 16, self.words, seed=99).asks], None)
        if self.spans:
            self.throughput("warm-up", make("2wiki", 16, self.words, seed=98))
        for stage in size["stages"]:
            if stage == "fit":
                for trace in traces:
                    self.throughput(stage, trace)
            elif stage == "warm":  # behind the last trace of "fit", whose documents it has
                self.throughput("corpus", traces[-1])
                for i in range(size["repeats"]):
                    self.throughput(stage, traces[-1].again(self.words, i), keep=True)
            elif stage == "off":
                for trace in traces:
                    self.reset()
                    self.once(stage, [ask.plain() for ask in trace.asks], None)
            elif stage == "empty":
                self.reset()
                self.once(stage, self.physical(traces[0].asks), metadata(traces[0].asks[0].head, 0))
            elif stage == "barrier":
                self.barrier(stage, traces[0], float("inf"))
            elif stage in ("large", "large_barriers", "large_batches"):
                capacity = self.facts["kv_tokens"]
                trace = that_exceeds(capacity, 1.4, self.block, self.words)
                if stage == "large":
                    self.throughput(stage, trace)
                else:
                    if stage == "large_barriers":
                        self.barrier("large_barrier_one", trace, float("inf"))
                    self.barrier("large_barrier_batches", trace, BARRIER_SHARE * capacity)
            elif stage == "slope" and self.spans:
                self.slope(size["lengths"])
        self.facts["done"] = True
        self.out.write_text(json.dumps({"facts": self.facts, "stages": self.stages}))


def _copy_speed(cuda: bool) -> float:
    """GB/s of copying memory, read and write counted: what SPNL's copies cost."""
    import torch

    size = (1 << 30) if cuda else (1 << 27)
    source = torch.ones(size, dtype=torch.uint8, device="cuda" if cuda else "cpu")
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        target.copy_(source)
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return round(2 * size / best / 1e9, 1)


if __name__ == "__main__":
    Worker(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])).run()
