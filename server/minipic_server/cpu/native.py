"""Compiles and loads span_attention.cpp, once per machine; without a compiler attention.py serves instead, slower."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from platformdirs import user_cache_path
from vllm.logger import init_logger

from minipic_server.plan import Row
from minipic_server.rope import TurnTable

logger = init_logger(__name__)

_SOURCE = Path(__file__).with_name("span_attention.cpp")
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class RowTensors(NamedTuple):
    """The rows of a step as the kernel reads them."""

    rows: torch.Tensor  # query start, query length, first run, end of runs. [rows, 4] int64
    runs: torch.Tensor  # index into blocks, first slot, keys, turn, 1 for the row's own segment. [runs, 5] int64
    blocks: torch.Tensor  # the batch's block table, rows behind each other. [requests, stride] int32

    @classmethod
    def build(cls, rows: Sequence[Row], block_table: torch.Tensor, size: int) -> "RowTensors":
        """Translate physical token runs into block table entries. block_table: [requests, max blocks] int32."""
        stride = block_table.stride(0)
        heads = np.empty((len(rows), 4), dtype=np.int64)
        runs = np.empty((sum(len(row.table) + 1 for row in rows), 5), dtype=np.int64)
        at = 0
        for i, row in enumerate(rows):
            end = at + len(row.table)
            heads[i] = row.query_start, row.query_len, at, end + 1
            mine = runs[at : end + 1]
            mine[:-1, :3] = row.table
            mine[-1, :3] = row.own
            mine[:, 3] = mine[:, 2]
            mine[:, 2] = mine[:, 1]
            mine[:, 1] = mine[:, 0] % size
            mine[:, 0] = row.request * stride + mine[:, 0] // size
            mine[:, 4] = 0
            mine[-1, 4] = 1
            at = end + 1
        return cls(torch.from_numpy(heads), torch.from_numpy(runs), block_table)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, from the user's cache if it is there; ``None`` without a C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        logger.warning("MiniPIC: no C++ compiler found (install g++): span attention runs in PyTorch, slower")
        return None
    # -march=native: a library built for another processor must not be loaded.
    machine = _processor()
    key = hashlib.sha256(_SOURCE.read_bytes() + repr((compiler, _FLAGS, machine)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("MINIPIC_HOME") or user_cache_path("minipic")) / "native"
    target = folder / f"span_attention-{key}.so"
    try:
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                built = Path(scratch) / target.name
                subprocess.run([compiler, *_FLAGS, "-o", built, _SOURCE], check=True, capture_output=True, text=True)
                built.replace(target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        logger.warning("MiniPIC: span attention runs in PyTorch, slower; building it failed: %s", detail)
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.processor()


def serves(head: int, heads: int, kv_heads: int, block_size: int, dtype: torch.dtype) -> bool:
    """Whether the compiled kernel takes this shape."""
    fits = block_size % 16 == 0 and block_size <= 128 and head % 16 == 0 and heads // kv_heads <= 48
    return fits and dtype in _DTYPES and library() is not None


def span_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    output: torch.Tensor,
    rows: RowTensors,
    table: TurnTable,
    *,
    scale: float,
) -> None:
    """As ``attention.attend`` for all rows of a step. query, output: [tokens, heads, head], contiguous."""
    kernel = library()
    assert kernel is not None
    assert query.is_contiguous() and kv_cache.is_contiguous() and output.is_contiguous()
    _, heads, head = query.shape
    _, kv_heads, block_size, _ = kv_cache.shape
    pointer = ctypes.c_void_p
    size = ctypes.c_int64
    failed = kernel.minipic_span_attention(
        ctypes.c_int(_DTYPES[query.dtype]),
        pointer(query.data_ptr()),
        pointer(kv_cache.data_ptr()),
        pointer(output.data_ptr()),
        *(size(n) for n in (heads, kv_heads, head, block_size, len(rows.rows))),
        pointer(rows.rows.data_ptr()),
        pointer(rows.runs.data_ptr()),
        pointer(rows.blocks.data_ptr()),
        pointer(table.cos.data_ptr()),
        pointer(table.sin.data_ptr()),
        size(table.rotary_dim),
        ctypes.c_int(table.neox),
        ctypes.c_float(scale),
    )
    if failed:
        raise ValueError(f"span attention kernel doesn't serve head size {head}, block size {block_size}")
