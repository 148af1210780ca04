"""int32 tables that the kernels read, from a step's rows, for the whole batch at once.

It runs before every launch, mostly with cold caches, where an array operation takes some 5 us however short the array:
runs and pieces, of which there are thousands, are arrays; rows and tasks, of which there are few, plain Python.

A row's keys, context first, then its own, are cut into chunks of equal length, one task each, so that every program
of a launch has about as much to do.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import add, floordiv, mul
from typing import NamedTuple

import numpy as np

from minipic_server.gpu.runs import RowRuns
from minipic_server.kernels.attend.kernel import ALL_VISIBLE, PIECE_FIELDS, TASK_FIELDS
from minipic_server.kernels.attend.merge import MERGE_FIELDS
from minipic_server.kernels.gather.kernel import MOVE_FIELDS, TILE

MIN_CHUNK = 128  # keys of a task: less isn't worth a merge
FEW_ROWS = 32  # for which tables may take the time to find the best cut
TASK_KEYS = 256  # as long as these take, beginning and ending a task do
CHUNK_STEP = 32
_UNLIMITED = (1 << 31) - 1  # minus any token this is more than ALL_VISIBLE
_OWN = np.zeros((1, 3), dtype=np.int32)  # holds the place of a row's own run


class FlatRuns(NamedTuple):
    """All runs of several rows, in row order; their keys are numbered through."""

    run: np.ndarray  # start, length, turn, _UNLIMITED or for a row's own run its first query. [runs, 4]
    begin: np.ndarray  # number of each run's first key. [runs]
    total: list[int]  # keys of each row. [rows]

    @classmethod
    def of(cls, rows: Sequence[RowRuns]) -> "FlatRuns":
        """Flatten; every row has at least its own run, which is not empty."""
        _, _, queries, contexts, starts, lens, keys = zip(*rows, strict=True)
        own = [end - 1 for end in accumulate([len(context) + 1 for context in contexts])]
        run = np.empty((own[-1] + 1, 4), dtype=np.int32)
        run[:, 3] = _UNLIMITED
        np.concatenate([part for context in contexts for part in (context, _OWN)], out=run[:, :3])
        run[own] = [(at, n, 0, at + n - q) for at, n, q in zip(starts, lens, queries, strict=True)]
        begin = run[:, 1].cumsum(dtype=np.int32)  # no step looks at 2^31 keys
        begin -= run[:, 1]
        return cls(run, begin, [*map(add, keys, lens)])

    def cut(self, chunk: Sequence[int], tile: int) -> tuple[np.ndarray, list[int]]:
        """Cut at every multiple of its ``chunk`` keys of a row, and then so that no piece exceeds ``tile`` keys.

        Args:
            chunk: of each row. [rows]
            tile: keys of a piece at most.

        Returns:
            pieces: start, length, turn, limit. [pieces, 4]
            first: number of each chunk's first piece, and of all pieces; rows in order. [chunks + 1]
        """
        cuts: list[int] = []  # number of each chunk's first key
        done = 0
        for total, step in zip(self.total, chunk, strict=True):
            cuts += range(done, done + total, step)
            done += total
        places = np.concatenate((self.begin, np.array([*cuts, done], dtype=np.int32)))
        order = places.argsort(kind="stable")  # merges two sorted stretches; where they meet, a part is empty
        places = places.take(order)
        is_run = order < len(self.run)
        source = is_run[:-1].cumsum() - 1
        length = places[1:] - places[:-1]
        part = self.run.take(source, axis=0)
        part[:, 0] += places[:-1] - self.begin.take(source)
        part[:, 1] = length
        counts = (length + (tile - 1)) // tile
        ends = np.zeros(len(places), dtype=np.int32)
        counts.cumsum(out=ends[1:])
        pieces = part.repeat(counts, axis=0)
        skipped = np.arange(len(pieces), dtype=np.int32)
        skipped -= ends[:-1].repeat(counts)
        skipped *= tile
        start, length, limit = pieces[:, 0], pieces[:, 1], pieces[:, 3]
        start += skipped
        length -= skipped
        np.minimum(length, tile, out=length)
        limit -= start
        np.minimum(limit, ALL_VISIBLE, out=limit)
        return pieces, ends[~is_run].tolist()


def _expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the item and number within it, of ``counts`` copies of each item. Each [counts.sum()]."""
    item = np.arange(len(counts)).repeat(counts)
    return item, np.arange(len(item)) - (counts.cumsum() - counts).take(item)


class AttendTables(NamedTuple):
    """Tables of the ``attend`` kernel; see there for the fields."""

    tasks: np.ndarray  # [tasks, 8]
    pieces: np.ndarray  # [pieces, 4]
    merges: np.ndarray  # [1 + merges, 4]
    slots: int  # partial results

    @classmethod
    def of(
        cls, rows: Sequence[RowRuns], *, block_q: int, chunk: Sequence[int], tile: int, zero: np.ndarray
    ) -> "AttendTables":
        """Tables for rows whose tiles hold ``block_q`` queries.

        Args:
            rows: at least one.
            block_q: queries of a tile.
            chunk: keys of a task, for each row. [rows]
            tile: keys of a piece at most.
            zero: tokens whose output is zero. [n]
        """
        flat = FlatRuns.of(rows)
        pieces, first = flat.cut(chunk, tile)
        tasks: list[int] = []
        merges: list[int] = []
        slots = base = 0
        for (request, start, queries, *_), total, step in zip(rows, flat.total, chunk, strict=True):
            splits = -(-total // step)
            for at in range(0, queries, block_q):
                token, count = start + at, min(block_q, queries - at)
                for i in range(base, base + splits):
                    slot = slots + i - base if splits > 1 else -1
                    tasks += token, count, at, request, first[i], first[i + 1], slot, 0
                if splits > 1:
                    merges += token, count, slots, splits
                    slots += splits
            base += splits
        merges += _nothing(zero, block_q)
        return cls(np.array(tasks, dtype=np.int32).reshape(-1, TASK_FIELDS), pieces, _merge_table(merges), slots)

    @classmethod
    def zeros(cls, zero: np.ndarray) -> "AttendTables":
        """Tables without rows: they only zero the output of tokens. ``zero``: [n]"""
        merges = _merge_table([field for token in zero for field in (token, 1, 0, 0)])
        return cls(np.zeros((1, TASK_FIELDS), np.int32), np.zeros((1, PIECE_FIELDS), np.int32), merges, 0)


def _merge_table(merges: list[int]) -> np.ndarray:
    """Merges behind their number. [1 + merges, 4]"""
    return np.array([len(merges) // MERGE_FIELDS, 0, 0, 0, *merges], dtype=np.int32).reshape(-1, MERGE_FIELDS)


def _nothing(tokens: np.ndarray, longest: int) -> list[int]:
    """Merges of no results, for every run of consecutive ``tokens``, cut at ``longest``."""
    merges: list[int] = []
    first = count = -1
    for token in tokens.tolist():
        if token == first + count and count < longest:
            count += 1
            merges[-3] = count
        else:
            first, count = token, 1
            merges += first, count, 0, 0
    return merges


def balanced_chunks(rows: Sequence[RowRuns], *, block_q: int, kv_heads: int, programs: int) -> list[int]:
    """Keys of a task, for each row, so that a launch of tasks of about equal length ends early. [rows]

    One program more than the ``programs`` that run at once doubles the time of all, so of few rows either no more do, or
    nearly twice as many: uneven rows are evener in smaller tasks. Of many rows those are cut that are longer than a
    program's share. Never more tasks than tiles and ``programs / kv_heads`` together.
    """
    keys = [r.context_keys + r.own_len for r in rows]
    tiles = [-(-r.query_len // block_q) for r in rows]
    work, count, once = sum(map(mul, keys, tiles)), sum(tiles), max(1, programs // kv_heads)
    finer = max(4, 64 // len(rows))
    best, splits = None, []
    for rounds, most in (1, once), (2, min(2 * once, once + len(rows))):
        if count > most or len(rows) > FEW_ROWS:
            continue
        step = max(MIN_CHUNK, work // most)
        while sum(map(mul, tried := [min(-(-n // step), round(n / MIN_CHUNK) or 1) for n in keys], tiles)) > most:
            step += step // finer + 1
        longest = max(map(floordiv, keys, tried))
        cost = rounds * (longest + TASK_KEYS)
        if best is None or cost < best:
            best, splits = cost, tried
        if longest * most <= 1.2 * work:
            break
    if best is None:
        step = max(MIN_CHUNK, work // once)
        splits = [round(n / step) or 1 for n in keys]
    return [-(-n // k // CHUNK_STEP) * CHUNK_STEP for n, k in zip(keys, splits, strict=True)]


class GatherTables(NamedTuple):
    """One ``gather`` launch and the FlashAttention call behind it."""

    moves: np.ndarray  # see kernels/gather. [moves, 5]
    cu_q: np.ndarray  # query tokens before each sequence, from ``first_token`` on. [sequences + 1]
    cu_k: np.ndarray  # gathered keys before each sequence. [sequences + 1]
    first_token: int  # of the step's batch
    last_token: int  # behind the last query
    max_q: int
    max_k: int

    @classmethod
    def of(cls, rows: Sequence[RowRuns], *, first_token: int, last_token: int) -> "GatherTables":
        """Rows become sequences; tokens between them too, with no keys, so that their output is zero.

        Args:
            rows: at least one, in token order, none overlapping.
            first_token: where the call's queries begin; at most the first row's.
            last_token: where they end; at least the last row's end.
        """
        flat = FlatRuns.of(rows)
        run, total = flat.run, np.array(flat.total)
        source, number = _expand(-(-run[:, 1].astype(np.int64) // TILE))
        skipped = number * TILE
        requests = np.array([r.request for r in rows]).repeat([len(r.context) + 1 for r in rows])
        moves = np.empty((len(source), MOVE_FIELDS), dtype=np.int32)
        moves[:, 0] = requests[source]
        moves[:, 1] = run[source, 0] + skipped
        moves[:, 2] = np.minimum(TILE, run[source, 1] - skipped)
        moves[:, 3] = run[source, 2]
        moves[:, 4] = flat.begin[source] + skipped
        begin, lens = np.array([(r.query_start, r.query_len) for r in rows]).T
        gaps = np.append(begin, last_token) - np.concatenate(([first_token], begin + lens))
        # gap, row, gap, row, ..., gap
        q_lens, k_lens = np.zeros(2 * len(rows) + 1, dtype=np.int64), np.zeros(2 * len(rows) + 1, dtype=np.int64)
        q_lens[::2], q_lens[1::2] = gaps, lens
        k_lens[1::2] = total
        real = q_lens > 0
        cu_q = np.concatenate(([0], q_lens[real].cumsum())).astype(np.int32)
        cu_k = np.concatenate(([0], k_lens[real].cumsum())).astype(np.int32)
        return cls(moves, cu_q, cu_k, first_token, last_token, int(q_lens.max()), int(total.max()))

    def busy(self, heads: int, rows: int) -> int:
        """Keys that all tiles of ``rows`` matrix rows together look at."""
        queries, keys = np.diff(self.cu_q).astype(np.int64), np.diff(self.cu_k)
        return int((-(-queries * heads // rows) * keys).sum())
