"""A request's plan as arrays, so that a step costs microseconds however many spans a prompt has.

``plan.RequestPlan`` is the readable form that the CPU backend uses; this is the same, compiled once when the worker
gets the request. A 128k prompt has a thousand spans, and every decode step looks at all of them.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import add, lt, sub
from typing import NamedTuple

import numpy as np

from minipic_sdk.layout import Layout

FAR = 1 << 30  # physical end of a segment that goes on with what is generated


class RowRuns(NamedTuple):
    """A row of a step (plan.Row) with its context as an array."""

    request: int  # index of the request in the step's batch
    query_start: int  # index of its first query token in the step's batch
    query_len: int
    context: np.ndarray  # int32 start, length, turn of each run. [runs, 3]
    own_start: int
    own_len: int
    context_keys: int  # keys in ``context``


@dataclass(slots=True)
class RequestRuns:
    """Segments and runs of one span request."""

    first: list[int]  # physical index of each segment's first visible token, ascending. [segments]
    stop: list[int]  # behind its last visible token, FAR if it goes on. [segments]
    canonical: list[int]  # position of the token at ``first``. [segments]
    contexts: list[np.ndarray]  # per segment; shared arrays where contexts are equal
    keys: list[int]  # keys in each context

    @classmethod
    def of(cls, layout: Layout) -> "RequestRuns":
        """What ``plan.RequestPlan.from_layout`` says, without an object per segment and run."""
        kinds, _, _, firsts, lasts, logicals, hiddens = zip(*layout.segments, strict=True)
        others = [i for i, kind in enumerate(kinds) if kind != "span"]
        canonical, keys = [layout.anchor] * len(kinds), [layout.anchor] * len(kinds)
        for i in others:
            canonical[i] = logicals[i]
        shown, before = firsts, logicals
        if any(hiddens):
            shown, before = tuple(map(add, firsts, hiddens)), tuple(map(add, logicals, hiddens))
        lens = tuple(map(sub, lasts, shown))
        runs = np.array((shown, lens, tuple(map(sub, logicals, canonical))), dtype=np.int32).T.copy()
        in_order = all(lens) and all(map(lt, before, before[1:]))
        sums, starts = tuple(accumulate(lens, initial=0)), None if in_order else np.array(before)
        anchor = np.array([[layout.head_at, layout.anchor, 0]], dtype=np.int32) if layout.anchor else runs[:0]
        contexts = [anchor] * len(kinds)
        for i in others:
            if kinds[i] == "head":
                contexts[i], keys[i] = runs[:0], 0
            elif starts is None:  # it sees all that stands before it
                contexts[i], keys[i] = runs[:i], sums[i]
            else:  # what Layout.context says
                contexts[i] = context = runs[(runs[:, 1] > 0) & (starts < logicals[i])]
                keys[i] = int(context[:, 1].sum())
        stop = [*lasts[:-1], FAR if layout.generates else lasts[-1]]
        return cls(list(firsts), stop, canonical, contexts, keys)

    @classmethod
    def plain(cls) -> "RequestRuns":
        """A request without control tokens, for devices where stock attention can't serve it."""
        return cls([0], [FAR], [0], [np.empty((0, 3), dtype=np.int32)], [0])

    def pieces(self, tile: int, done: int) -> int:
        """Pieces of at most ``tile`` keys that the next decode step reads, ``done`` tokens being in the cache."""
        context = int((-(-self.contexts[-1][:, 1] // tile)).sum())
        return context + max(0, done - self.first[-1]) // tile + 1

    def plan(
        self, request: int, query_start: int, computed: int, scheduled: int, positions: np.ndarray
    ) -> list[RowRuns]:
        """Rows of a step that computes physical tokens [computed, computed + scheduled).

        Args:
            request: index in the step's batch.
            query_start: index of its first scheduled token in the step's batch.
            computed: tokens whose KV is in the cache already.
            scheduled: tokens computed in this step.
            positions: canonical positions, written for these tokens: 0 where invisible. [batch tokens]
        """
        end = computed + scheduled
        i = len(self.first) - 1
        if computed < self.first[i]:  # not in the last segment yet: find the first that isn't done
            i = bisect_right(self.stop, computed)
        rows: list[RowRuns] = []
        mine = positions[query_start : query_start + scheduled]
        mine[:] = 0
        while i < len(self.first) and self.first[i] < end:
            own_start = self.first[i]
            first, last = max(own_start, computed), min(self.stop[i], end)
            if first < last:
                at = self.canonical[i] - own_start
                mine[first - computed : last - computed] = np.arange(first + at, last + at)
                where = query_start + first - computed
                keys = self.contexts[i], own_start, last - own_start, self.keys[i]
                rows.append(RowRuns(request, where, last - first, *keys))
            i += 1
        return rows
