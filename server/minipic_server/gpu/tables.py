"""int32 tables that the kernels read, from a step's rows; vectorised over the whole batch.

A row's keys, context first, then its own, are cut into chunks of equal length, one task each, so that every program
of a launch has about as much to do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minipic_server.gpu.runs import RowRuns
from minipic_server.kernels.attend.kernel import ALL_VISIBLE, MERGE_FIELDS, PIECE_FIELDS, TASK_FIELDS
from minipic_server.kernels.gather.kernel import MOVE_FIELDS, TILE

MIN_CHUNK = 128  # keys of a task: less isn't worth a merge
CHUNK_STEP = 32


class FlatRuns(NamedTuple):
    """All runs of several rows, in row order."""

    run: np.ndarray  # start, length, turn, limit. [runs, 4]
    row: np.ndarray  # index of the row each belongs to. [runs]
    before: np.ndarray  # keys of the same row in earlier runs. [runs]
    total: np.ndarray  # keys of each row. [rows]

    @classmethod
    def of(cls, rows: Sequence[RowRuns]) -> "FlatRuns":
        """Flatten; every row has at least its own run, which is not empty."""
        counts = np.fromiter((len(r.context) + 1 for r in rows), dtype=np.int64, count=len(rows))
        ends = counts.cumsum()
        run = np.empty((int(ends[-1]), 4), dtype=np.int32)
        run[:, 3] = ALL_VISIBLE
        own = ends - 1
        in_context = np.ones(len(run), dtype=bool)
        in_context[own] = False
        run[in_context, :3] = np.concatenate([r.context for r in rows])
        run[own] = [(r.own_start, r.own_len, 0, r.own_len - r.query_len) for r in rows]
        done = run[:, 1].astype(np.int64).cumsum()
        row = np.repeat(np.arange(len(rows)), counts)
        row_start = np.concatenate(([0], done[own][:-1]))
        return cls(run, row, done - run[:, 1] - row_start[row], done[own] - row_start)

    def cut(self, chunk: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut at every multiple of its ``chunk`` keys of a row, and then so that no piece exceeds ``tile`` keys.

        Args:
            chunk: of each row. [rows]
            tile: keys of a piece at most.

        Returns:
            pieces: start, length, turn, limit. [pieces, 4]
            source: the run each is part of. [pieces]
            number: which chunk of its row each belongs to. [pieces]
        """
        ends, step = self.before + self.run[:, 1], chunk[self.row]
        first = self.before // step
        source, k = _expand((ends - 1) // step - first + 1)
        number = k + first[source]
        lo = np.maximum(self.before[source], number * step[source])
        hi = np.minimum(ends[source], (number + 1) * step[source])
        part, k = _expand(-(-(hi - lo) // tile))
        source, number, hi = source[part], number[part], hi[part]
        lo = lo[part] + k * tile
        skipped = lo - self.before[source]
        pieces = self.run[source]
        pieces[:, 0] += skipped
        pieces[:, 1] = np.minimum(hi - lo, tile)
        own = pieces[:, 3] != ALL_VISIBLE
        pieces[own, 3] -= skipped[own]
        return pieces, source, number


def _expand(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the item and number within it, of ``counts`` copies of each item. Each [counts.sum()]."""
    item = np.repeat(np.arange(len(counts)), counts)
    return item, np.arange(len(item)) - (counts.cumsum() - counts)[item]


def _runs(tokens: np.ndarray, longest: int) -> np.ndarray:
    """First token and length of every run of consecutive ``tokens``, cut at ``longest``. [runs, 2]"""
    starts = np.flatnonzero(np.diff(tokens, prepend=-2) != 1)
    lens = np.diff(starts, append=len(tokens))
    run, k = _expand(-(-lens // longest))
    at = k * longest
    return np.stack((tokens[starts[run]] + at, np.minimum(longest, lens[run] - at)), 1)


class AttendTables(NamedTuple):
    """Tables of the ``attend`` kernel; see there for the fields."""

    tasks: np.ndarray  # [tasks, 8]
    pieces: np.ndarray  # [pieces, 4]
    merges: np.ndarray  # [merges, 4]
    slots: int  # partial results

    @classmethod
    def of(
        cls, rows: Sequence[RowRuns], *, block_q: int, chunk: np.ndarray, tile: int, zero: np.ndarray
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
        pieces, source, number = flat.cut(chunk, tile)
        splits = -(-flat.total // chunk)
        base = splits.cumsum() - splits
        counts = np.bincount(base[flat.row[source]] + number, minlength=int(splits.sum()))
        to = counts.cumsum()
        starts, lens, requests = np.array([(r.query_start, r.query_len, r.request) for r in rows]).T
        row, at = _expand(-(-lens // block_q))
        at *= block_q
        per_tile = splits[row]
        of, split = _expand(per_tile)
        which = base[row][of] + split
        split_tile = per_tile > 1
        slots_before = np.where(split_tile, per_tile, 0).cumsum() - np.where(split_tile, per_tile, 0)
        count = np.minimum(block_q, lens[row] - at)
        tasks = np.zeros((len(of), TASK_FIELDS), dtype=np.int32)
        tasks[:, 0] = (starts[row] + at)[of]
        tasks[:, 1] = count[of]
        tasks[:, 2] = at[of]
        tasks[:, 3] = requests[row][of]
        tasks[:, 4] = (to - counts)[which]
        tasks[:, 5] = to[which]
        tasks[:, 6] = np.where(split_tile[of], slots_before[of] + split, -1)
        merged = np.flatnonzero(split_tile)
        nothing = _runs(zero, block_q)
        stop = 1 + len(merged)
        merges = np.zeros((stop + len(nothing), MERGE_FIELDS), dtype=np.int32)
        merges[0, 0] = len(merges) - 1
        merges[1:stop, 0] = (starts[row] + at)[merged]
        merges[1:stop, 1] = count[merged]
        merges[1:stop, 2] = slots_before[merged]
        merges[1:stop, 3] = per_tile[merged]
        merges[stop:, :2] = nothing
        return cls(tasks, pieces, merges, int(per_tile[merged].sum()))

    @classmethod
    def zeros(cls, zero: np.ndarray) -> "AttendTables":
        """Tables without rows: they only zero the output of tokens. ``zero``: [n]"""
        merges = np.zeros((1 + len(zero), MERGE_FIELDS), dtype=np.int32)
        merges[0, 0] = len(zero)
        merges[1:, 0], merges[1:, 1] = zero, 1
        return cls(np.zeros((1, TASK_FIELDS), np.int32), np.zeros((1, PIECE_FIELDS), np.int32), merges, 0)


def balanced_chunks(rows: Sequence[RowRuns], *, block_q: int, kv_heads: int, programs: int) -> np.ndarray:
    """Keys of a task, for each row, so that a launch has nearly ``programs`` programs of about equal length. [rows]

    There are at most ``rows + programs / kv_heads`` tasks where a row has one tile.
    """
    keys = np.array([r.context_keys + r.own_len for r in rows])
    tiles = -(-np.array([r.query_len for r in rows]) // block_q)
    target = max(MIN_CHUNK, int((keys * tiles).sum()) * kv_heads // programs)
    splits = np.rint(keys / target).astype(np.int64)
    if int((splits * tiles).sum()) * kv_heads > programs:
        splits = keys // target  # one program that has to wait for another one to end doubles the time of all
    splits = np.maximum(1, splits)
    return -(-keys // splits // CHUNK_STEP) * CHUNK_STEP


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
        run, starts = flat.run, flat.total.cumsum() - flat.total
        source, number = _expand(-(-run[:, 1].astype(np.int64) // TILE))
        skipped = number * TILE
        row = flat.row[source]
        moves = np.empty((len(source), MOVE_FIELDS), dtype=np.int32)
        moves[:, 0] = np.array([r.request for r in rows])[row]
        moves[:, 1] = run[source, 0] + skipped
        moves[:, 2] = np.minimum(TILE, run[source, 1] - skipped)
        moves[:, 3] = run[source, 2]
        moves[:, 4] = starts[row] + flat.before[source] + skipped
        begin, lens = np.array([(r.query_start, r.query_len) for r in rows]).T
        gaps = np.append(begin, last_token) - np.concatenate(([first_token], begin + lens))
        # gap, row, gap, row, ..., gap
        q_lens, k_lens = np.zeros(2 * len(rows) + 1, dtype=np.int64), np.zeros(2 * len(rows) + 1, dtype=np.int64)
        q_lens[::2], q_lens[1::2] = gaps, lens
        k_lens[1::2] = flat.total
        real = q_lens > 0
        cu_q = np.concatenate(([0], q_lens[real].cumsum())).astype(np.int32)
        cu_k = np.concatenate(([0], k_lens[real].cumsum())).astype(np.int32)
        return cls(moves, cu_q, cu_k, first_token, last_token, int(q_lens.max()), int(flat.total.max()))

    def busy(self, heads: int, rows: int) -> int:
        """Keys that all tiles of ``rows`` matrix rows together look at."""
        queries, keys = np.diff(self.cu_q).astype(np.int64), np.diff(self.cu_k)
        return int((-(-queries * heads // rows) * keys).sum())
