# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Split-KV attention of short queries over runs of the paged cache, and the merge of its splits.

A *tile* is up to BLOCK_Q queries of one row with all G query heads of a KV head: BLOCK_Q * G matrix rows. A *task* is
one tile against a stretch of the row's keys, cut into *pieces*: at most BLOCK_N keys of one run. The loop goes over
pieces, not over runs, so that the next keys are on their way while these are used, also from one run to the next.
Tables are int32, made by ``gpu/tables.py``:

    tasks  [n, 8]  first token, queries, index of the first query in its row, request, piece from, piece to,
                   slot of its partial result (-1: the tile has one task, which writes the output itself), 0
    pieces [n, 4]  first key (physical token index), keys, turn, limit
    merges [n, 4]  first token, queries, first slot, slots (0: the output is zero)

Query i of a row (0 = the row's first) sees key j of a piece iff j <= limit + i. A table row with 0 queries is
skipped, so tables may be padded to a fixed size under CUDA graphs.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from minipic_server.kernels.launch import Constants, launch, power_of_two
from minipic_server.rope import TurnTable

TASK_FIELDS = 8
PIECE_FIELDS = 4
MERGE_FIELDS = 4
ALL_VISIBLE = 1 << 30  # limit of a piece that every query sees whole
_HOPPER = 232_448  # bytes of shared memory
_SPARE = 16_384  # of it, for what the compiler adds
_MERGED_QUERIES = 4  # of a program of the merge
_MERGED_SPLITS = 16  # results that it reads at once, of one query; half as many of several


class Settings(NamedTuple):
    """How a launch is compiled."""

    keys: int  # of a piece at most
    warps: int
    stages: int


@cache
def settings(rows: int, head: int, dtype: torch.dtype) -> Settings:
    """For tiles of this many matrix rows: what measured best on an H200, with as many stages as this GPU has room for.

    Measured in docs/notes/2026-11-30-questions.md.
    """
    if dtype == torch.float32:
        return Settings(32, 4, 1)
    if rows <= 16:
        best = Settings(32, 1, 4)
    elif rows <= 32:
        best = Settings(64, 2, 2)
    elif rows <= 64 and head <= 128:
        best = Settings(64, 4, 4)
    else:
        best = Settings(64, 8, 3)
    width = max(16, power_of_two(head)) * dtype.itemsize
    room = _shared_memory() - rows * width - _SPARE  # beside the turned queries
    return best._replace(stages=max(1, min(best.stages, room // (2 * best.keys * width))))


def partial_slots(partial: torch.Tensor, heads: int, block_q: int, head: int) -> int:
    """Results of splits, and their float32 log-sum-exps behind them, that ``partial`` has room for."""
    return partial.numel() // (heads * block_q * (head + 1))


@cache
def _shared_memory() -> int:
    """Bytes that a program may use."""
    if not torch.cuda.is_available():
        return _HOPPER
    return torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin


@triton.jit
def _attend_kernel(
    q_ptr,  # [tokens, heads, D]
    kv_ptr,  # [blocks, kv_heads, block, 2 * D]
    table_ptr,  # [requests, max blocks]
    cos_ptr,  # [positions, HALF]
    sin_ptr,  # [positions, HALF]
    task_ptr,
    piece_ptr,
    out_ptr,  # [tokens, heads, D]
    part_ptr,  # [slots, heads, BLOCK_Q, D] float32
    lse_ptr,  # [slots, heads, BLOCK_Q] float32, base 2
    scale,  # of the scores, times log2(e)
    q_token,
    q_head,
    kv_block,
    kv_head,
    kv_slot,
    table_row,
    out_token,
    out_head,
    heads,
    kv_heads,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    HALF: tl.constexpr,  # rotary_dim / 2
    HALF_PAD: tl.constexpr,
    NEOX: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EXACT: tl.constexpr,  # float32 products: for float32 models and for the interpreter, which lacks bfloat16 ones
    STAGES: tl.constexpr,
):
    # Programs of one task stand side by side: together they read whole cache lines of all KV heads.
    kvh = tl.program_id(0) % kv_heads
    task = task_ptr + tl.program_id(0) // kv_heads * 8
    count = tl.load(task + 1)
    if count == 0:
        return
    first, index, request = tl.load(task), tl.load(task + 2), tl.load(task + 3)
    lo, hi, slot = tl.load(task + 4), tl.load(task + 5), tl.load(task + 6)

    m = tl.arange(0, BLOCK_M)
    qi = m // G  # query of this matrix row
    head = kvh * G + m % G
    live = qi < count
    d = tl.arange(0, D_PAD)
    h = tl.arange(0, HALF_PAD)
    n = tl.arange(0, BLOCK_N)
    q_row = q_ptr + (first + qi).to(tl.int64)[:, None] * q_token + head[:, None] * q_head
    table = table_ptr + request.to(tl.int64) * table_row
    kv_base = kv_ptr + kvh.to(tl.int64) * kv_head
    turns = d < 2 * HALF
    if NEOX:
        half_live = live[:, None] & (h < HALF)[None, :]
        a = tl.load(q_row + h[None, :], mask=half_live, other=0.0)
        b = tl.load(q_row + HALF + h[None, :], mask=half_live, other=0.0)
        passing = live[:, None] & ((d >= 2 * HALF) & (d < D))[None, :]
        rest = tl.load(q_row + d[None, :], mask=passing, other=0.0)
    else:
        a = tl.load(q_row + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
        b = tl.load(q_row + (d ^ 1)[None, :], mask=live[:, None] & turns[None, :], other=0.0)

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    for p in tl.range(lo, hi, num_stages=STAGES):
        piece = piece_ptr + p * 4
        start, length, turn, limit = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
        seen = n < tl.minimum(length, limit + index + count)
        at = start + n
        block = tl.load(table + at // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        kv = kv_base + (block * kv_block + (at % BLOCK_SIZE) * kv_slot)[:, None]
        turn_at = turn.to(tl.int64) * HALF
        # The query looks at this run turned back by its turn: R[-d] q, rounded to its dtype once.
        if NEOX:
            key_live = seen[:, None] & (h < HALF)[None, :]
            k_a = tl.load(kv + h[None, :], mask=key_live, other=0.0)
            k_b = tl.load(kv + HALF + h[None, :], mask=key_live, other=0.0)
            c = tl.load(cos_ptr + turn_at + h, mask=h < HALF, other=1.0)[None, :]
            s = tl.load(sin_ptr + turn_at + h, mask=h < HALF, other=0.0)[None, :]
            scores = _dot((a.to(tl.float32) * c + b.to(tl.float32) * s).to(a.dtype), tl.trans(k_a), EXACT)
            scores += _dot((b.to(tl.float32) * c - a.to(tl.float32) * s).to(a.dtype), tl.trans(k_b), EXACT)
            if 2 * HALF < D:
                key_rest = seen[:, None] & ((d >= 2 * HALF) & (d < D))[None, :]
                scores += _dot(rest, tl.trans(tl.load(kv + d[None, :], mask=key_rest, other=0.0)), EXACT)
        else:
            k_d = tl.load(kv + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0)
            c = tl.load(cos_ptr + turn_at + d // 2, mask=turns, other=1.0)[None, :]
            s = tl.load(sin_ptr + turn_at + d // 2, mask=turns, other=0.0)
            s = tl.where(d % 2 == 0, s, -s)[None, :]
            scores = _dot((a.to(tl.float32) * c + b.to(tl.float32) * s).to(a.dtype), tl.trans(k_d), EXACT)
        # Unused slots may hold NaN, so they are never loaded: a weight of zero would keep it.
        v = tl.load(kv + D + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0)
        visible = seen[None, :] & (n[None, :] <= limit + index + qi[:, None])
        scores = tl.where(visible, scores * scale, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + _dot(weight.to(v.dtype), v, EXACT)
        top = peak

    keep = live & (qi < BLOCK_Q)
    some = tl.where(total == 0.0, 1.0, total)
    result = acc / some[:, None]
    write = keep[:, None] & (d < D)[None, :]
    if slot < 0:
        to = out_ptr + (first + qi).to(tl.int64)[:, None] * out_token + head[:, None] * out_head + d[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=write)
    else:
        part = (slot.to(tl.int64) * heads + head) * BLOCK_Q + qi
        tl.store(part_ptr + part[:, None] * D + d[None, :], result, mask=write)
        tl.store(lse_ptr + part, tl.where(total == 0.0, float("-inf"), top + tl.log2(some)), mask=keep)


@triton.jit
def _dot(a, b, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)


@triton.jit
def _merge_kernel(
    merge_ptr,
    part_ptr,  # [slots, heads, BLOCK_Q, D] float32
    lse_ptr,  # [slots, heads, BLOCK_Q] float32
    out_ptr,  # [tokens, heads, D]
    out_token,
    out_head,
    heads,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    QUERIES: tl.constexpr,  # of a program
    SPLITS: tl.constexpr,  # that it reads at once
):
    # Few splits in flight in few programs would wait for memory most of the time.
    groups = (BLOCK_Q + QUERIES - 1) // QUERIES
    merge = merge_ptr + tl.program_id(0) // (heads * groups) * 4
    count = tl.load(merge + 1)
    begin = tl.program_id(0) % groups * QUERIES
    if begin >= count:
        return
    first, slot, slots = tl.load(merge), tl.load(merge + 2), tl.load(merge + 3)
    head = tl.program_id(0) // groups % heads
    d = tl.arange(0, D_PAD)
    q = begin + tl.arange(0, QUERIES)
    few = q < count
    s = tl.arange(0, SPLITS)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, D_PAD], tl.float32)
    for i in range(0, slots, SPLITS):
        live = (i + s < slots)[:, None] & few[None, :]
        part = ((slot + i + s).to(tl.int64) * heads + head)[:, None] * BLOCK_Q + q[None, :]
        lse = tl.load(lse_ptr + part, mask=live, other=float("-inf"))
        read = live[:, :, None] & (d < D)[None, None, :]
        parts = tl.load(part_ptr + part[:, :, None] * D + d[None, None, :], mask=read, other=0.0)
        peak = tl.maximum(top, tl.max(lse, 0))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weight, fade = tl.exp2(lse - base[None, :]), tl.exp2(top - base)
        acc = acc * fade[:, None] + tl.sum(weight[:, :, None] * parts, 0)
        total = total * fade + tl.sum(weight, 0)
        top = peak
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    to = out_ptr + (first + q).to(tl.int64)[:, None] * out_token + head * out_head + d[None, :]
    tl.store(to, result.to(out_ptr.dtype.element_ty), mask=few[:, None] & (d < D)[None, :])


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    table: TurnTable,
    tasks: torch.Tensor,
    pieces: torch.Tensor,
    merges: torch.Tensor | None,
    partial: torch.Tensor,
    *,
    scale: float,
    block_q: int,
    out: torch.Tensor,
    compiled: Settings | None = None,
    exact: bool | None = None,
) -> None:
    """Write the output of every tile's queries into ``out``; tokens of no tile stay.

    Args:
        query: rotated by the model at canonical positions; last axis contiguous. [tokens, heads, head]
        kv_cache: keys, then values, on the last axis, which is contiguous. [blocks, kv_heads, block_size, 2 * head]
        block_table: int32. [requests, max blocks]
        table: the layer's turns.
        tasks, pieces, merges: see the module; ``merges`` is ``None`` when no tile was split and nothing is zeroed.
        partial: float32 scratch of at least ``slots * heads * block_q * (head + 1)`` elements.
        scale: of the scores.
        block_q: queries a tile holds at most; what the tables were made for.
        out: [tokens, heads, head]
        compiled: ``settings`` by default; its piece size must be that of the tables.
        exact: float32 products; by default for float32 models and under the interpreter.
    """
    _, heads, head = query.shape
    _, kv_heads, block_size, _ = kv_cache.shape
    block, kv_head, slot, _ = kv_cache.stride()
    if exact is None:
        exact = query.dtype == torch.float32 or query.device.type == "cpu"
    block_m = max(16, power_of_two(block_q * heads // kv_heads))
    compiled = compiled or settings(block_m, head, query.dtype)
    slots = partial_slots(partial, heads, block_q, head)
    lse = partial[slots * heads * block_q * head :]
    launch(
        _attend_kernel,
        tasks.shape[0] * kv_heads,
        (
            query,
            kv_cache,
            block_table,
            table.cos,
            table.sin,
            tasks,
            pieces,
            out,
            partial,
            lse,
            scale * math.log2(math.e),
            query.stride(0),
            query.stride(1),
            block,
            kv_head,
            slot,
            block_table.stride(0),
            out.stride(0),
            out.stride(1),
            heads,
            kv_heads,
        ),
        _constants(
            heads // kv_heads,
            head,
            table.cos.shape[1],
            table.neox,
            block_size,
            block_q,
            block_m,
            compiled.keys,
            exact,
            compiled.stages,
        ),
        warps=compiled.warps,
    )
    if merges is not None and merges.shape[0]:
        strides = out.stride(0), out.stride(1), heads
        constants = _merge_constants(head, block_q)
        programs = merges.shape[0] * heads * -(-block_q // min(power_of_two(block_q), _MERGED_QUERIES))
        launch(_merge_kernel, programs, (merges, partial, lse, out, *strides), constants, warps=4)


@cache
def _constants(
    groups: int,
    head: int,
    half: int,
    neox: bool,
    block_size: int,
    block_q: int,
    block_m: int,
    block_n: int,
    exact: bool,
    stages: int,
) -> Constants:
    return (
        ("G", groups),
        ("D", head),
        ("D_PAD", max(16, power_of_two(head))),
        ("HALF", half),
        ("HALF_PAD", max(16, power_of_two(half))),
        ("NEOX", neox),
        ("BLOCK_SIZE", block_size),
        ("BLOCK_Q", block_q),
        ("BLOCK_M", block_m),
        ("BLOCK_N", block_n),
        ("EXACT", exact),
        ("STAGES", stages),
    )


@cache
def _merge_constants(head: int, block_q: int) -> Constants:
    queries = min(power_of_two(block_q), _MERGED_QUERIES)
    splits = _MERGED_SPLITS if queries == 1 else _MERGED_SPLITS // 2
    pads = max(16, power_of_two(head))
    return (("D", head), ("D_PAD", pads), ("BLOCK_Q", block_q), ("QUERIES", queries), ("SPLITS", splits))
