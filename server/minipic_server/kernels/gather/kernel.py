# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Copies runs of the paged cache into contiguous memory, turning keys of moved spans: ``R[d] k``.

One program copies up to TILE tokens of one KV head. Its table is int32, made by ``gpu/tables.py``:

    moves [n, 5]  request, first key (physical token index), keys (at most TILE), turn, first place in the output

Moving K and V once costs a percent of the attention that a long query then does on them, and the stock
FlashAttention kernel stays untouched; it even reads contiguous memory faster than pages.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from minipic_server.kernels.launch import Constants, launch, power_of_two
from minipic_server.rope import TurnTable

MOVE_FIELDS = 5
TILE = 64


@triton.jit
def _gather_kernel(
    kv_ptr,  # [blocks, kv_heads, block, 2 * D]
    table_ptr,  # [requests, max blocks]
    cos_ptr,  # [positions, HALF]
    sin_ptr,  # [positions, HALF]
    move_ptr,
    key_ptr,  # [keys, kv_heads, D]
    value_ptr,  # [keys, kv_heads, D]
    kv_block,
    kv_head,
    kv_slot,
    table_row,
    kv_heads,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    HALF: tl.constexpr,  # rotary_dim / 2
    HALF_PAD: tl.constexpr,
    NEOX: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    kvh = tl.program_id(0) % kv_heads  # side by side: together they move whole tokens
    move = move_ptr + tl.program_id(0) // kv_heads * 5
    request, start, length = tl.load(move), tl.load(move + 1), tl.load(move + 2)
    turn, to = tl.load(move + 3), tl.load(move + 4)
    t = tl.arange(0, TILE)
    live = t < length
    at = start + t
    block = tl.load(table_ptr + request.to(tl.int64) * table_row + at // BLOCK_SIZE, mask=live, other=0)
    place = block.to(tl.int64) * kv_block + (at % BLOCK_SIZE) * kv_slot + kvh * kv_head
    source = kv_ptr + place[:, None]
    where = ((to + t).to(tl.int64)[:, None] * kv_heads + kvh) * D
    d = tl.arange(0, D_PAD)[None, :]
    whole = live[:, None] & (d < D)
    tl.store(value_ptr + where + d, tl.load(source + D + d, mask=whole), mask=whole)
    if turn == 0:
        tl.store(key_ptr + where + d, tl.load(source + d, mask=whole), mask=whole)
    else:
        h = tl.arange(0, HALF_PAD)
        c = tl.load(cos_ptr + turn.to(tl.int64) * HALF + h, mask=h < HALF)[None, :]
        s = tl.load(sin_ptr + turn.to(tl.int64) * HALF + h, mask=h < HALF)[None, :]
        half = live[:, None] & (h < HALF)[None, :]
        if NEOX:
            a = tl.load(source + h[None, :], mask=half).to(tl.float32)
            b = tl.load(source + HALF + h[None, :], mask=half).to(tl.float32)
            dtype = key_ptr.dtype.element_ty
            tl.store(key_ptr + where + h[None, :], (a * c - b * s).to(dtype), mask=half)
            tl.store(key_ptr + where + HALF + h[None, :], (b * c + a * s).to(dtype), mask=half)
        else:
            e = tl.arange(0, 2 * HALF_PAD)[None, :]
            pairs = live[:, None] & (e < 2 * HALF)
            both = tl.load(source + e, mask=pairs).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (TILE, HALF_PAD, 2)))
            both = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (TILE, 2 * HALF_PAD))
            tl.store(key_ptr + where + e, both.to(key_ptr.dtype.element_ty), mask=pairs)
        if 2 * HALF < D:
            rest = live[:, None] & (d >= 2 * HALF) & (d < D)
            tl.store(key_ptr + where + d, tl.load(source + d, mask=rest), mask=rest)


def gather(
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    table: TurnTable,
    moves: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    warps: int = 4,
) -> None:
    """Fill ``keys`` and ``values`` as the table says.

    Args:
        kv_cache: keys, then values, on the last axis, which is contiguous. [blocks, kv_heads, block_size, 2 * head]
        block_table: int32. [requests, max blocks]
        table: the layer's turns.
        moves: see the module.
        keys, values: contiguous. [at least the moved keys, kv_heads, head]
        warps: of each program.
    """
    _, kv_heads, block_size, double = kv_cache.shape
    block, kv_head, slot, _ = kv_cache.stride()
    launch(
        _gather_kernel,
        moves.shape[0] * kv_heads,
        (
            kv_cache,
            block_table,
            table.cos,
            table.sin,
            moves,
            keys,
            values,
            block,
            kv_head,
            slot,
            block_table.stride(0),
            kv_heads,
        ),
        _constants(double // 2, table.cos.shape[1], table.neox, block_size),
        warps=warps,
    )


@cache
def _constants(head: int, half: int, neox: bool, block_size: int) -> Constants:
    return (
        ("D", head),
        ("D_PAD", max(16, power_of_two(head))),
        ("HALF", half),
        ("HALF_PAD", power_of_two(half)),
        ("NEOX", neox),
        ("BLOCK_SIZE", block_size),
        ("TILE", TILE),
    )
