# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Split-KV attention of short queries over runs of the paged cache; merge.py puts its splits together.

A *tile* is up to BLOCK_Q queries of one row with all G query heads of a KV head: BLOCK_Q * G matrix rows. A *task* is
one tile against a stretch of the row's keys, cut into *pieces*: at most BLOCK_N keys of one run. The loop goes over
pieces, not over runs, so that the next keys are on their way while these are used, also from one run to the next.
Tables are int32, made by ``gpu/tables.py``:

    tasks  [n, 8]  first token, queries, index of the first query in its row, request, piece from, piece to,
                   slot of its partial result (-1: the tile has one task, which writes the output itself), 0
    pieces [n, 4]  first key (physical token index), keys, turn, limit
    merges         see merge.py

Query i of a row (0 = the row's first) sees key j of a piece iff j <= limit + i. A table row with 0 queries is
skipped, so tables may be padded to a fixed size under CUDA graphs.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from minipic_server.kernels.attend.merge import merge
from minipic_server.kernels.launch import Constants, launch, power_of_two
from minipic_server.rope import TurnTable

TASK_FIELDS = 8
PIECE_FIELDS = 4
ALL_VISIBLE = 1 << 30  # limit of a piece that every query sees whole
_HOPPER = 232_448  # bytes of shared memory
_SPARE = 16_384  # of it, for what the compiler adds


class Settings(NamedTuple):
    """How a launch is compiled."""

    keys: int  # of a piece at most
    warps: int
    stages: int


@cache
def settings(rows: int, head: int, dtype: torch.dtype) -> Settings:
    """For tiles of this many matrix rows: what measured best on an H200, with as many stages as this GPU has room for.

    Measured in docs/notes/2026-11-30-attend.md.
    """
    if dtype == torch.float32:
        return Settings(32, 4, 1)
    if rows <= 16:
        best = Settings(64, 2, 4)
    elif rows <= 32:
        best = Settings(64, 2, 2)
    elif rows <= 64 and head <= 128:
        best = Settings(64, 4, 4)
    else:
        best = Settings(64, 8, 7)
    width = max(16, power_of_two(head)) * dtype.itemsize
    buffers = (_shared_memory() - rows * width - _SPARE) // (2 * best.keys * width)  # beside the turned queries
    # Three dependent loads (piece, block, key) take a stage each, so three more stages have one more piece in flight.
    return best._replace(stages=max(1, min(best.stages, 3 * buffers - 2)))


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
    n = tl.arange(0, BLOCK_N)
    q_row = q_ptr + (first + qi).to(tl.int64)[:, None] * q_token + head[:, None] * q_head
    # Turned pairs are kept apart where halves of a head turn whole; else each number stands beside a copy of its pair's other.
    HALVES: tl.constexpr = NEOX and 2 * HALF == D_PAD
    if HALVES:
        pair = tl.arange(0, D_PAD // 2)
        a = tl.load(q_row + pair[None, :], mask=live[:, None], other=0.0)
        b = tl.load(q_row + HALF + pair[None, :], mask=live[:, None], other=0.0)
        turns = pair < HALF
    else:
        turns = d < 2 * HALF
        if NEOX:
            other, pair, before = (d + HALF) % (2 * HALF), d % HALF, d < HALF
        else:
            other, pair, before = d ^ 1, d // 2, d % 2 == 0
        a = tl.load(q_row + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
        b = tl.load(q_row + other[None, :], mask=live[:, None] & turns[None, :], other=0.0)
    table = table_ptr + request.to(tl.int64) * table_row
    kv_base = kv_ptr + kvh.to(tl.int64) * kv_head

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    for p in tl.range(lo, hi, num_stages=STAGES):
        piece = piece_ptr + p * 4
        start, length, turn, limit = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
        seen = n < tl.minimum(length, limit + index + count)
        at = (start + n).to(tl.uint32)  # unsigned: dividing is shifting
        block = tl.load(table + at // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        kv = kv_base + (block * kv_block + (at % BLOCK_SIZE) * kv_slot)[:, None] + d[None, :]
        read = seen[:, None] & (d < D)[None, :]
        turn_at = turn.to(tl.int64) * HALF
        # The query looks at this run turned back by its turn: R[-d] q, rounded to its dtype once.
        k = tl.load(kv, mask=read, other=0.0)
        c = tl.load(cos_ptr + turn_at + pair, mask=turns, other=1.0)
        s = tl.load(sin_ptr + turn_at + pair, mask=turns, other=0.0)
        if HALVES:
            c, s = c[None, :], s[None, :]
            turned_a = (a.to(tl.float32) * c + b.to(tl.float32) * s).to(a.dtype)
            turned_b = (b.to(tl.float32) * c - a.to(tl.float32) * s).to(a.dtype)
            turned = tl.join(turned_a, turned_b).permute(0, 2, 1).reshape(BLOCK_M, D_PAD)
        else:
            c, s = c[None, :], tl.where(before, s, -s)[None, :]
            turned = (a.to(tl.float32) * c + b.to(tl.float32) * s).to(a.dtype)
        scores = _dot(turned, tl.trans(k), EXACT)
        # Unused slots may hold NaN, so they are never loaded: a weight of zero would keep it.
        v = tl.load(kv + D, mask=read, other=0.0)
        visible = seen[None, :] & (n[None, :] <= limit + index + qi[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1) * scale)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp2(scores * scale - base[:, None])
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


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    table: TurnTable,
    tasks: torch.Tensor,
    pieces: torch.Tensor,
    merges: torch.Tensor,
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
        tasks, pieces, merges: see the module.
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
    if merges.shape[0] > 1:
        merge(merges, partial, lse, out, block_q)


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
        ("NEOX", neox),
        ("BLOCK_SIZE", block_size),
        ("BLOCK_Q", block_q),
        ("BLOCK_M", block_m),
        ("BLOCK_N", block_n),
        ("EXACT", exact),
        ("STAGES", stages),
    )
