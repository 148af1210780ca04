# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# ruff: noqa: F821 (p is deleted at the end of a loop that its closures don't outlive)
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Kernel timings: ``attend`` and ``gather`` against the bandwidth floor and, where vLLM is there, FlashAttention.

    python benchmarks/gpu/micro.py [--sweep] [--out FILE] [--dry]

Llama-3-8B heads (32 query, 8 KV, 128), bf16, block size 16. Contexts are documents of 100 tokens, all moved, in
scattered blocks. Inputs rotate among layers so that the L2 cache does not help. ``--sweep`` tries kernel settings;
``--dry`` runs tiny shapes once, under the interpreter on a machine without a GPU.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton

from minipic_server.gpu.runs import RowRuns
from minipic_server.gpu.scratch import WAVES, AttentionShape
from minipic_server.gpu.tables import AttendTables, GatherTables, balanced_chunks
from minipic_server.kernels.attend import attend
from minipic_server.kernels.attend.kernel import Settings, settings
from minipic_server.kernels.gather import gather
from minipic_server.rope import TurnTable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KV_HEADS, HEAD, BLOCK = 32, 8, 128, 16
SHAPE = AttentionShape(HEADS, KV_HEADS, HEAD, torch.bfloat16)
PROCESSORS = 132
COPY_RATE = 4.3e12  # bytes/s read + written, measured on such a machine (device notes, 2026-10-28)

# name: requests, queries, documents, tokens of each
DECODES = {
    "decode 1x1k": (1, 1, 10, 100),
    "decode 64x1k": (64, 1, 10, 100),
    "decode 256x1k": (256, 1, 10, 100),
    "decode 64x4k": (64, 1, 40, 100),
    "decode 8x8k, long documents": (8, 1, 8, 1000),
    "decode 1x32k": (1, 1, 320, 100),
    "decode 1x128k": (1, 1, 1280, 100),
}
QUESTIONS = {
    f"question {q} x {docs // 10}k": (1, q, docs, 100) for docs in (80, 320, 1280) for q in (8, 16, 32, 64, 256)
}
MANY = {"questions 30 x 32 x 1k": (30, 32, 10, 100)}


class Problem:
    """Tensors and rows of one shape; several layers' worth of cache."""

    def __init__(self, requests, queries, docs, length):
        gen = torch.Generator(device=DEVICE).manual_seed(0)
        per_doc = -(-(length + 1) // BLOCK)
        own = 20 + queries
        pages = docs * per_doc + -(-(own + 1) // BLOCK)
        context = np.zeros((docs, 3), dtype=np.int32)
        context[:, 0] = np.arange(docs) * per_doc * BLOCK + 1
        context[:, 1] = length
        context[:, 2] = np.arange(docs) * length + 40
        self.rows = [
            RowRuns(i, i * queries, queries, context, docs * per_doc * BLOCK + 1, own, docs * length)
            for i in range(requests)
        ]
        self.keys = requests * (docs * length + own)
        cache_bytes = requests * pages * BLOCK * SHAPE.key_bytes
        self.layers = max(1, min(8, int(4e8 // cache_bytes) + 1)) if DEVICE == "cuda" else 1
        self.cache = [
            torch.randn(requests * pages, BLOCK, KV_HEADS, 2 * HEAD, device=DEVICE, generator=gen)
            .to(SHAPE.dtype)
            .transpose(1, 2)
            for _ in range(self.layers)
        ]
        self.blocks = torch.randperm(requests * pages, device=DEVICE, generator=gen).int().view(requests, pages)
        self.query = torch.randn(requests * queries, HEADS, HEAD, device=DEVICE, generator=gen).to(SHAPE.dtype)
        self.out = torch.empty_like(self.query)
        frequencies = 500000.0 ** (-torch.arange(0, HEAD, 2, device=DEVICE) / HEAD)
        self.table = TurnTable.from_frequencies(frequencies, positions=docs * length + 64, neox=True)
        self.queries, self.requests = queries, requests
        self.lens = torch.full((requests,), docs * per_doc * BLOCK + 1 + own, device=DEVICE, dtype=torch.int32)

    @property
    def floor_ms(self):
        """Reading every key and value once, at the copy rate."""
        return self.keys * SHAPE.key_bytes / COPY_RATE * 1e3

    def attends(self, *, block_q=None, waves=None, compiled=None):
        """Closures, one per layer, that run ``attend``."""
        block_q = block_q or SHAPE.block_q(self.queries)
        compiled = compiled or settings(SHAPE.matrix_rows(block_q), HEAD, SHAPE.dtype)
        programs = PROCESSORS * (waves or WAVES[min(128, SHAPE.matrix_rows(block_q))])
        chunk = balanced_chunks(self.rows, block_q=block_q, kv_heads=KV_HEADS, programs=programs)
        t = AttendTables.of(
            self.rows, block_q=block_q, chunk=chunk, tile=compiled.keys, zero=np.zeros(0, dtype=np.int64)
        )
        tasks, pieces, merges = (torch.from_numpy(a).to(DEVICE) for a in (t.tasks, t.pieces, t.merges))
        partial = torch.empty(max(4, t.slots) * HEADS * block_q * (HEAD + 1), device=DEVICE)
        return [
            lambda c=c: attend(
                self.query,
                c,
                self.blocks,
                self.table,
                tasks,
                pieces,
                merges,
                partial,
                scale=HEAD**-0.5,
                block_q=block_q,
                compiled=compiled,
                out=self.out,
            )
            for c in self.cache
        ]

    def gathers(self, **settings):
        """Closures that run ``gather``, and the contiguous buffers and lengths for FlashAttention."""
        t = GatherTables.of(self.rows, first_token=0, last_token=len(self.query))
        moves, cu_q, cu_k = (torch.from_numpy(a).to(DEVICE) for a in (t.moves, t.cu_q, t.cu_k))
        k = torch.empty(self.keys, KV_HEADS, HEAD, device=DEVICE, dtype=SHAPE.dtype)
        v = torch.empty_like(k)
        calls = [lambda c=c: gather(c, self.blocks, self.table, moves, k, v, **settings) for c in self.cache]
        return calls, (k, v, cu_q, cu_k, t)


def time_ms(calls):
    """Median milliseconds of one call, and the spread (quartiles); inputs rotate."""
    if DEVICE == "cpu":
        calls[0]()
        return 0.0, 0.0
    for c in calls:
        c()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for c in calls:
            c()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(30):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / len(calls))
    low, mid, high = np.percentile(times, (25, 50, 75))
    return float(mid), float(high - low)


def flash(p):
    """Closures of stock paged FlashAttention 3 over the same cache (every key in place), or None without vLLM."""
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return None, None
    cu = torch.arange(p.requests + 1, device=DEVICE, dtype=torch.int32) * p.queries
    longest = int(p.lens.max())

    def paged(c):
        k, v = c.transpose(1, 2).split(HEAD, dim=-1)
        return lambda: flash_attn_varlen_func(
            p.query,
            k,
            v,
            max_seqlen_q=p.queries,
            cu_seqlens_q=cu,
            max_seqlen_k=longest,
            seqused_k=p.lens,
            block_table=p.blocks,
            causal=True,
            fa_version=3,
            out=p.out,
        )

    return [paged(c) for c in p.cache], flash_attn_varlen_func


def sweep_settings(block_m):
    """Combinations worth compiling for tiles of this many matrix rows."""
    ns, warps, stages = ((32, 64), (1, 2), (2, 3, 4, 5, 6)) if block_m <= 32 else ((32, 64), (2, 4), (2, 3, 4))
    for n, w, s in itertools.product(ns, warps, stages):
        if n * HEAD * 4 * max(s - 1, 1) <= 140_000:
            yield Settings(n, w, s)


def compile_share(share, of):
    """Compile every of-th setting into Triton's cache, in a process of its own."""
    for name in ("decode 1x1k", "question 8 x 8k", "question 16 x 8k"):
        p = Problem(*{**DECODES, **QUESTIONS}[name])
        for i, s in enumerate(sweep_settings(SHAPE.matrix_rows(SHAPE.block_q(p.queries)))):
            if i % of == share:
                try:
                    p.attends(compiled=s)[0]()
                except Exception as error:
                    print(name, s, repr(error)[:100], file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--share", type=int)
    a = parser.parse_args()
    if a.share is not None:
        return compile_share(a.share, 8)
    results = []

    def report(**row):
        results.append(row)
        print(json.dumps(row), flush=True)

    shapes = {**DECODES, **QUESTIONS, **MANY}
    if a.dry:
        shapes = {"dry decode": (2, 1, 3, 20), "dry question": (1, 5, 3, 20)}
    if a.sweep and not a.dry:
        workers = [subprocess.Popen([sys.executable, __file__, "--share", str(i)]) for i in range(8)]
        [w.wait() for w in workers]
        for name in (
            "decode 64x1k",
            "decode 256x1k",
            "decode 64x4k",
            "decode 8x8k, long documents",
            "question 8 x 32k",
            "question 16 x 32k",
        ):
            p = Problem(*shapes[name])
            tried = []
            for s in sweep_settings(SHAPE.matrix_rows(SHAPE.block_q(p.queries))):
                for waves in (4, 8, 16) if p.queries == 1 else (2, 4):
                    try:
                        tried.append((time_ms(p.attends(waves=waves, compiled=s))[0], {**s._asdict(), "waves": waves}))
                    except Exception as error:
                        print(name, s, repr(error)[:100], file=sys.stderr)
            tried.sort(key=lambda t: t[0])
            report(sweep=name, floor=p.floor_ms, best=[{"ms": round(t, 4), **s} for t, s in tried[:6]])
    for name, shape in shapes.items():
        p = Problem(*shape)
        ms, spread = time_ms(p.attends())
        row = {"name": name, "attend_ms": ms, "spread": spread, "floor_ms": p.floor_ms}
        calls, (k, v, cu_q, cu_k, t) = p.gathers()
        row["gather_ms"] = time_ms(calls)[0]
        paged, varlen = flash(p)
        if paged:
            row["paged_fa3_ms"] = time_ms(paged)[0]

            def both(g):
                def call():
                    g()
                    varlen(
                        p.query,
                        k,
                        v,
                        max_seqlen_q=t.max_q,
                        cu_seqlens_q=cu_q,
                        max_seqlen_k=t.max_k,
                        cu_seqlens_k=cu_k,
                        causal=True,
                        fa_version=3,
                        out=p.out,
                    )

                return call

            row["gather_fa3_ms"] = time_ms([both(g) for g in calls])[0]
        report(**{n: round(x, 4) if isinstance(x, float) and math.isfinite(x) else x for n, x in row.items()})
        del p
    if a.out:
        with open(a.out, "w") as f:
            json.dump(
                {
                    "machine": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
                    "torch": torch.__version__,
                    "triton": triton.__version__,
                    "rows": results,
                },
                f,
                indent=1,
            )


if __name__ == "__main__":
    main()
