# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""One engine's measurements, in a process of its own: ``python -m minipic_cli.bench.gpu.engine stock|minipic OUT``.

Writes raw samples after every stage, so that a run that is cut short still tells what it measured.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minipic_cli.bench.gpu.workload import (
    ANCHOR,
    CONTROL,
    HEAD,
    LAYOUTS,
    QUESTION,
    Prompts,
    Scale,
    engine_options,
    laid_out,
    with_spans,
)
from minipic_cli.bench.gpu.workload import plain as plain_prompt
from minipic_sdk.layouts import Block, Epic
from minipic_sdk.protocol import RequestMeta


class Bench:
    """A vLLM engine and what was measured on it."""

    def __init__(self, kind: str, scale: Scale, out: Path) -> None:
        self.kind, self.scale, self.out = kind, scale, out
        self.samples: dict[str, list[float]] = {}
        self.facts: dict[str, Any] = {"kind": kind, "stage": "import"}
        self.prompts = Prompts(1)
        self.llm: Any = None

    def save(self, stage: str) -> None:
        """Write what there is."""
        self.facts["stage"] = stage
        self.out.write_text(json.dumps({"facts": self.facts, "samples": self.samples}))

    def start(self) -> None:
        """Start the engine; the baseline must be stock (I10)."""
        options = engine_options(self.scale)
        if self.kind == "minipic":
            from minipic_server import engine_kwargs

            options = engine_kwargs(**options, control_tokens=CONTROL)
        import torch
        import triton
        import vllm

        begin = time.perf_counter()
        self.llm = vllm.LLM(**options)
        config = self.llm.llm_engine.vllm_config
        worker, backend = config.parallel_config.worker_cls, str(config.attention_config.backend)
        if self.kind == "stock" and ("minipic" in worker or "CUSTOM" in backend or "MINIPIC" in os.environ):
            raise RuntimeError(f"the baseline is not stock: {worker}, {backend}")
        self.facts |= {
            "start_s": round(time.perf_counter() - begin, 1),
            "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__, "triton": triton.__version__},
            "worker": worker,
            "backend": backend,
            "cudagraphs": str(config.compilation_config.cudagraph_mode),
            "kv_blocks": config.cache_config.num_gpu_blocks,
        }

    def generate(self, prompts: list[list[int]], tokens: int, meta: str | None = None) -> tuple[float, list[Any]]:
        """Seconds, and vLLM's outputs."""
        from vllm import SamplingParams

        extra = {"extra_args": {"minipic": meta}} if meta else {}
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **extra)
        inputs = [{"prompt_token_ids": p} for p in prompts]
        begin = time.perf_counter()
        outs = self.llm.generate(inputs, params, use_tqdm=False)
        took = time.perf_counter() - begin
        if any(len(o.outputs[0].token_ids) != tokens for o in outs):
            raise RuntimeError("a request ended early")
        return took, outs

    def sample(self, name: str, measure: Callable[[], float], repeats: int, *, discard: int = 1) -> None:
        """Repeat a measurement; the first ones compile and load things."""
        for i in range(discard + repeats):
            value = measure()
            if i >= discard:
                self.samples.setdefault(name, []).append(value)
        self.save(name)

    def prefill(self) -> None:
        """Tokens per second of many plain prompts, one generated token each."""

        def measure() -> float:
            prompts = [self.prompts.tokens(self.prompts.between(2048, 4096)) for _ in range(self.scale.prefills)]
            return sum(map(len, prompts)) / self.generate(prompts, 1)[0]

        self.sample("prefill_tokens_per_s", measure, self.scale.repeats)

    def cold(self) -> None:
        """Milliseconds to the first token of plain prompts that nothing is cached of."""
        for n in self.scale.cold:
            measure = lambda n=n: 1e3 * self.generate([self.prompts.tokens(n)], 1)[0]
            self.sample(f"ttft_{n}_plain_ms", measure, 2 * self.scale.repeats)

    def decode(self, spans: bool) -> None:
        """Milliseconds of a decode step, contexts of 1k tokens in the cache."""
        for batch in self.scale.batches:
            prompts, meta = self._decode_prompts(batch, spans)
            self.generate(prompts, 1, meta)
            self.generate(prompts, 8, meta)

            def measure(prompts: list[list[int]] = prompts, meta: str | None = meta) -> float:
                one = min(self.generate(prompts, 1, meta)[0] for _ in range(2))
                return 1e3 * (self.generate(prompts, 1 + self.scale.decoded, meta)[0] - one) / self.scale.decoded

            name = f"decode_{'spans_' if spans else ''}b{batch}_ms"
            self.sample(name, measure, self.scale.repeats if batch < 256 else 3, discard=0)

    def _decode_prompts(self, batch: int, spans: bool) -> tuple[list[list[int]], str | None]:
        if not spans:
            return [self.prompts.tokens(1024) for _ in range(batch)], None
        head = self.prompts.tokens(HEAD)
        corpus = self.prompts.documents(4 * 1024)
        rag = [self.prompts.shuffled(corpus)[:10] for _ in range(batch)]
        return [with_spans(head, docs, self.prompts.tokens(QUESTION)) for docs in rag], _meta(head)

    def documents(self) -> None:
        """Milliseconds to the first token over cached documents: stock in the very order, MiniPIC in new orders."""
        for n in self.scale.contexts:
            head, documents = self.prompts.tokens(HEAD), self.prompts.documents(n)
            if self.kind == "stock":
                self._stock_documents(n, head, documents)
            else:
                self._span_documents(n, head, documents)

    def _stock_documents(self, n: int, head: list[int], documents: list[list[int]]) -> None:
        def anew() -> float:
            prompt = plain_prompt(head, self.prompts.shuffled(documents), self.prompts.tokens(QUESTION))
            return 1e3 * self.generate([prompt], 1)[0]

        def hit() -> float:
            took, outs = self.generate([plain_prompt(head, documents, self.prompts.tokens(QUESTION))], 1)
            if outs[0].num_cached_tokens < n:
                raise RuntimeError(f"only {outs[0].num_cached_tokens} of {n} tokens were cached")
            return 1e3 * took

        self.sample(f"ttft_{n}_new_order_ms", anew, 3 if n < 100_000 else 2, discard=int(n < 100_000))
        self.generate([plain_prompt(head, documents, self.prompts.tokens(QUESTION))], 1)
        self.sample(f"ttft_{n}_hit_ms", hit, 4 * self.scale.repeats, discard=2)

    def _span_documents(self, n: int, head: list[int], documents: list[list[int]]) -> None:
        meta = _meta(head)

        def anew() -> float:
            prompt = with_spans(head, self.prompts.shuffled(documents), self.prompts.tokens(QUESTION))
            took, outs = self.generate([prompt], 1, meta)
            if outs[0].num_cached_tokens < n:
                raise RuntimeError(f"only {outs[0].num_cached_tokens} of {n} tokens were cached")
            return 1e3 * took

        cold = with_spans(head, documents, self.prompts.tokens(QUESTION))
        self.samples[f"ttft_{n}_spans_cold_ms"] = [1e3 * self.generate([cold], 1, meta)[0]]
        self.sample(f"ttft_{n}_new_order_ms", anew, 4 * self.scale.repeats, discard=2)

    def layouts(self) -> None:
        """Milliseconds to the first token over the same cached documents, as the block layout and EPIC lay them out."""
        for name, (count, length) in LAYOUTS.items():
            head, documents = self.prompts.tokens(HEAD), [self.prompts.tokens(length) for _ in range(count)]
            for layout in (Block(), Epic(base="block")):

                def measure(layout: Block | Epic = layout, head: Any = head, documents: Any = documents) -> float:
                    order = self.prompts.shuffled(documents)
                    made = laid_out(layout, head, order, self.prompts.tokens(QUESTION))
                    meta = RequestMeta(anchor=made.anchor, placements=made.placements).to_json()
                    return 1e3 * self.generate([made.token_ids], 1, meta)[0]

                self.sample(f"ttft_{name}_{layout.name}_ms", measure, 3 * self.scale.repeats, discard=3)

    def memory(self) -> None:
        """Bytes that spans need, and of the KV cache."""
        self.facts["memory"] = self.llm.collective_rpc("minipic_memory")[0]

    def run(self) -> None:
        """Everything."""
        self.start()
        self.save("started")
        self.generate([self.prompts.tokens(3000) for _ in range(8)], 4)
        if self.kind == "minipic" and "gpu" in self.facts["worker"]:
            self.memory()
        self.documents()
        if self.kind == "minipic":
            self.layouts()
        self.prefill()
        self.cold()
        self.decode(spans=False)
        if self.kind == "minipic":
            self.decode(spans=True)
        self.save("done")


def _meta(head: list[int]) -> str:
    return json.dumps({"v": 1, "anchor": head[:ANCHOR]})


def main() -> None:
    """Run one engine; the parent ends the process group."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["stock", "minipic"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    a = parser.parse_args()
    Bench(a.kind, Scale.small() if a.small else Scale.parallel(a.gpus) if a.gpus > 1 else Scale(), a.out).run()


if __name__ == "__main__":
    main()
