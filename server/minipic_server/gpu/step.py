"""A step's attention work on the device: which kernels run over which tables.

Built once per step on the CPU, with one copy to the device; every layer then walks it. Rows with short queries go to
``attend``; for long queries keys are gathered and a stock FlashAttention call does the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from minipic_server.gpu.runs import RowRuns
from minipic_server.gpu.scratch import AttentionShape, Scratch
from minipic_server.gpu.tables import AttendTables, GatherTables, balanced_chunks

SHORT_ROWS = 64  # matrix rows (queries times grouped heads) up to which gathering doesn't pay
LONG_QUERY = 512  # tokens of a plain prompt from which contiguous keys are worth a thought
TILE_ROWS = 128  # queries of a FlashAttention tile; with fewer tiles than processors it splits keys, pages otherwise
QUERIES_PER_KEY = 1500  # of a plain step, from which gathering keys is cheaper than reading pages
Upload = Callable[[np.ndarray], torch.Tensor]


class ShortRows(NamedTuple):
    """One ``attend`` launch."""

    block_q: int
    tasks: torch.Tensor
    pieces: torch.Tensor
    merges: torch.Tensor


class LongRows(NamedTuple):
    """One ``gather`` launch and the FlashAttention call behind it."""

    moves: torch.Tensor | None  # None: the step's own keys are all there is
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    first: int  # token
    last: int
    max_q: int
    max_k: int
    tokens: torch.Tensor | None  # the rows' tokens, where plain requests stand between them. [n]
    splits: int = 0  # of each row's keys; 0: as FlashAttention sees fit


@dataclass(slots=True)
class DeviceStep:
    """What a step's attention metadata carries beside the stock fields."""

    plain: bool  # stock attention runs first, for the plain requests of the batch
    long: list[LongRows] = field(default_factory=list[LongRows])
    short: list[ShortRows] = field(default_factory=list[ShortRows])


def plan_step(
    rows: Sequence[RowRuns],
    *,
    zero: np.ndarray,
    plain: bool,
    tokens: int,
    shape: AttentionShape,
    scratch: Scratch,
    upload: Upload,
    gathers: bool,
) -> DeviceStep:
    """Sort rows by what serves them best and put their tables on the device.

    Args:
        rows: of the batch's span requests, in token order.
        zero: their invisible tokens. [n]
        plain: whether there are plain requests too.
        tokens: of the step.
        shape: of the attention layers.
        scratch: bounds what is gathered at once.
        upload: copies an int32 array to the device, asynchronously.
        gathers: whether FlashAttention serves this dtype and device.
    """
    long = [r for r in rows if gathers and _is_long(r, shape, scratch, plain)]
    chosen = set(map(id, long))
    by_tile: dict[int, list[RowRuns]] = {}
    for r in rows:
        if id(r) not in chosen:
            by_tile.setdefault(shape.block_q(r.query_len), []).append(r)
    arrays: list[np.ndarray] = []
    groups = _gathers(_groups(long, scratch, plain), tokens, plain)
    for tables, index in groups:
        arrays += [tables.moves, tables.cu_q, tables.cu_k, *([] if index is None else [index])]
    nothing = zero[:0]
    if long or plain:  # those calls zero what has no keys
        zero = nothing
    shorts: list[tuple[int, AttendTables]] = []
    for block_q, mine in sorted(by_tile.items()):
        shorts.append((block_q, attend_tables(mine, zero, block_q=block_q, shape=shape, scratch=scratch)))
        zero = nothing
        arrays += shorts[-1][1][:3]
    if len(zero):  # a step of padding only
        shorts.append((1, AttendTables.zeros(zero)))
        arrays += shorts[-1][1][:3]
    views = iter(_upload(arrays, upload))
    step = DeviceStep(plain)
    for tables, index in groups:
        moves, cu_q, cu_k = next(views).view(-1, 5), next(views), next(views)
        where = next(views) if index is not None else None
        bounds = tables.first_token, tables.last_token, tables.max_q, tables.max_k
        # Left alone it splits short spans for the sake of the longest row, and writes and merges twice the output.
        splits = int(tables.busy(shape.heads, TILE_ROWS) >= scratch.processors * tables.max_k)
        step.long.append(LongRows(moves, cu_q, cu_k, *bounds, where, splits))
    for block_q, _ in shorts:
        tasks, pieces, merges = next(views).view(-1, 8), next(views).view(-1, 4), next(views).view(-1, 4)
        step.short.append(ShortRows(block_q, tasks, pieces, merges))
    return step


def attend_tables(
    rows: Sequence[RowRuns], zero: np.ndarray, *, block_q: int, shape: AttentionShape, scratch: Scratch
) -> AttendTables:
    """Tables of one ``attend`` launch, its work spread over the device.

    Args:
        rows: at least one.
        zero: tokens whose output is zero. [n]
        block_q: queries of a tile.
        shape: of the attention layers.
        scratch: says how much runs at once.
    """
    programs = scratch.programs(shape.matrix_rows(block_q))
    chunk = balanced_chunks(rows, block_q=block_q, kv_heads=shape.kv_heads, programs=programs)
    return AttendTables.of(rows, block_q=block_q, chunk=chunk, tile=shape.piece_keys(block_q), zero=zero)


def least_contiguous(shape: AttentionShape, processors: int) -> int:
    """Tokens of the shortest plain prompt whose keys may be read where they are contiguous."""
    return max(LONG_QUERY, TILE_ROWS * processors // shape.heads)


def plan_contiguous(
    done: np.ndarray, new: np.ndarray, *, shape: AttentionShape, scratch: Scratch, upload: Upload
) -> DeviceStep | None:
    """A step of plain requests with long queries: FlashAttention reads contiguous keys faster than pages.

    Only where both give the same bits (``warmup.same_bits``), so that it can't be told from stock but by the clock;
    never for so few queries that FlashAttention splits the keys, which it does by other rules for pages.

    Args:
        done: tokens of each request in the cache before the step. [requests]
        new: tokens of each computed by the step. [requests]
        shape: of the attention layers.
        scratch: bounds what can be gathered.
        upload: copies an int32 array to the device.

    Returns:
        ``None`` where pages are better.
    """
    if new.max() < least_contiguous(shape, scratch.processors):
        return None
    starts = np.concatenate(([0], new.cumsum())).astype(np.int32)
    tokens, longest = int(starts[-1]), int(new.max())
    if not done.any():
        cu = upload(starts)
        return DeviceStep(False, [LongRows(None, cu, cu, 0, tokens, longest, longest, None)])
    keys = done + new
    total = int(keys.sum())
    if total > len(scratch.keys) or (new * (keys - new / 2)).sum() < QUERIES_PER_KEY * total:
        return None
    nothing = np.empty((0, 3), dtype=np.int32)
    counts = zip(starts.tolist(), new.tolist(), keys.tolist(), strict=False)
    rows = [RowRuns(i, at, n, nothing, 0, k, 0) for i, (at, n, k) in enumerate(counts)]
    tables = GatherTables.of(rows, first_token=0, last_token=tokens)
    moves, cu_q, cu_k = _upload([tables.moves, tables.cu_q, tables.cu_k], upload)
    sizes = tables.max_q, tables.max_k
    return DeviceStep(False, [LongRows(moves.view(-1, 5), cu_q, cu_k, 0, tokens, *sizes, None)])


def _is_long(row: RowRuns, shape: AttentionShape, scratch: Scratch, plain: bool) -> bool:
    if row.query_len * shape.groups <= SHORT_ROWS or row.context_keys + row.own_len > len(scratch.keys):
        return False
    return not plain or row.query_len <= len(scratch.output)


def _groups(rows: Sequence[RowRuns], scratch: Scratch, plain: bool) -> list[list[RowRuns]]:
    """Cut a step's long rows so that each group's keys, and its output beside plain requests, fit the scratch."""
    groups: list[list[RowRuns]] = []
    keys = 0
    for row in rows:
        mine = row.context_keys + row.own_len
        full = keys + mine > len(scratch.keys)
        if groups and plain:
            full |= row.query_start + row.query_len - groups[-1][0].query_start > len(scratch.output)
        if not groups or full:
            groups.append([])
            keys = 0
        groups[-1].append(row)
        keys += mine
    return groups


def _gathers(groups: list[list[RowRuns]], tokens: int, plain: bool) -> list[tuple[GatherTables, np.ndarray | None]]:
    """Tables of each group; beside plain requests also which of the call's tokens are the rows', else all are."""
    out: list[tuple[GatherTables, np.ndarray | None]] = []
    for i, rows in enumerate(groups):
        first, last = rows[0].query_start, rows[-1].query_start + rows[-1].query_len
        if plain:
            index = np.concatenate([np.arange(r.query_start, r.query_start + r.query_len) for r in rows]) - first
            out.append((GatherTables.of(rows, first_token=first, last_token=last), index.astype(np.int32)))
        else:  # together the calls cover every token of the step, and zero those between rows
            last = groups[i + 1][0].query_start if i + 1 < len(groups) else tokens
            out.append((GatherTables.of(rows, first_token=first if i else 0, last_token=last), None))
    return out


def _upload(arrays: Sequence[np.ndarray], upload: Upload) -> list[torch.Tensor]:
    """One copy for all; each begins at a multiple of 16 bytes, which the compiled kernels rely on."""
    if not arrays:
        return []
    ends = np.cumsum([-(-a.size // 4) * 4 for a in arrays])
    packed = np.zeros(int(ends[-1]), dtype=np.int32)
    starts = [0, *ends[:-1].tolist()]
    for start, a in zip(starts, arrays, strict=True):
        packed[start : start + a.size] = a.reshape(-1)
    device = upload(packed)
    return [device[start : start + a.size] for start, a in zip(starts, arrays, strict=True)]
