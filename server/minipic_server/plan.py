"""What one engine step attends to: rows of queries and the runs of keys each of them sees.

A *row* is a request's run of query tokens with one visible key set (DESIGN section 5): the tokens of one segment that
are scheduled in this step. A *run* is a stretch of keys whose stored rotation and logical position differ by one
*turn* d, so that a query looks at the whole run through R[pi(t) - d] q (docs/adr/0001). Everything is derived from the
prompt's token ids and its metadata, never from physical block ids, so blocks may come and go.

Plain requests have no rows here: stock vLLM's kernel serves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minipic_sdk.layout import Layout

OPEN_END = 1 << 40  # a prompt's last segment goes on with what is generated


class Run(NamedTuple):
    """Keys [start, start + length) of a request, in physical token indices."""

    start: int
    length: int
    turn: int  # logical minus canonical position of its keys; the query is turned back by it


class Row(NamedTuple):
    """Query tokens of one request that see the same keys."""

    request: int  # index of the request in the step's batch
    query_start: int  # index of its first query token in the step's batch
    query_len: int
    context: tuple[Run, ...]  # seen by every query of the row
    own: Run  # the row's own segment up to its last query; causal, aligned bottom right; turn 0
    table: np.ndarray  # the context again, as an array. [runs, 3]

    @property
    def num_keys(self) -> int:
        """Keys that the last query of the row sees."""
        return sum(run.length for run in self.context) + self.own.length


class SegmentPlan(NamedTuple):
    """One segment of a request, as attention needs it."""

    start: int
    stop: int  # OPEN_END for the last segment of a prompt that generates
    visible_start: int
    visible_stop: int  # likewise
    canonical: int  # position at which the token at visible_start is rotated
    context: tuple[Run, ...]
    table: np.ndarray  # the context again, as an array. [runs, 3]


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A span request's segments in physical order; built once per arrangement of its prompt."""

    segments: tuple[SegmentPlan, ...]

    @classmethod
    def from_layout(cls, layout: Layout) -> "RequestPlan":
        """Compile ``layout``: O(segments squared) for many dependent segments, else linear."""
        anchor = (Run(layout.head_at, layout.anchor, 0),) if layout.anchor else ()
        anchor_table = np.array(anchor, dtype=np.int64).reshape(-1, 3)
        plans: list[SegmentPlan] = []
        for i, s in enumerate(layout.segments):
            if s.kind == "span":
                context, table = anchor, anchor_table
            else:
                context = tuple(
                    Run(t.shown_start, t.visible_stop - t.shown_start, t.logical - layout.canonical(t))
                    for t in layout.context(i)
                )
                table = np.array(context, dtype=np.int64).reshape(-1, 3)
            last = i == len(layout.segments) - 1 and layout.generates
            plans.append(
                SegmentPlan(
                    s.start,
                    OPEN_END if last else s.stop,
                    s.visible_start,
                    OPEN_END if last else s.visible_stop,
                    layout.canonical(s),
                    context,
                    table,
                )
            )
        return cls(tuple(plans))

    def rows(self, request: int, query_start: int, computed: int, scheduled: int) -> list[Row]:
        """Rows of a step that computes physical tokens [computed, computed + scheduled) of this request.

        Args:
            request: its index in the step's batch.
            query_start: index of its first scheduled token in the step's batch.
            computed: tokens whose KV is in the cache already.
            scheduled: tokens computed in this step.
        """
        end = computed + scheduled
        rows: list[Row] = []
        for s in self.segments:
            first, last = max(s.visible_start, computed), min(s.visible_stop, end)
            if first < last:
                own = Run(s.visible_start, last - s.visible_start, 0)
                rows.append(Row(request, query_start + first - computed, last - first, s.context, own, s.table))
        return rows

    def positions(self, computed: int, scheduled: int) -> np.ndarray:
        """Position handed to the model for each scheduled token: canonical, 0 for invisible tokens. [scheduled]"""
        out = np.zeros(scheduled, dtype=np.int64)
        end = computed + scheduled
        for s in self.segments:
            first, last = max(s.visible_start, computed), min(s.visible_stop, end)
            if first < last:
                base = s.canonical - s.visible_start
                out[first - computed : last - computed] = np.arange(first + base, last + base)
        return out


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step with at least one span request in its batch."""

    rows: tuple[Row, ...]  # visible tokens of span requests
    plain: tuple[int, ...]  # batch indices of the requests that stock attention serves
    invisible: np.ndarray  # batch token indices whose attention output is zero. [n]
    positions: np.ndarray  # canonical positions of span requests' tokens, physical of others. [tokens]

    @classmethod
    def build(
        cls, plans: Sequence[RequestPlan | None], computed: np.ndarray, scheduled: np.ndarray
    ) -> "StepPlan | None":
        """Plan a step; ``None`` when every request in it is plain.

        Args:
            plans: per request of the batch, ``None`` for plain ones. [requests]
            computed: tokens of each request in the cache before the step. [requests]
            scheduled: tokens of each request computed by the step. [requests]
        """
        if not any(plans):
            return None
        rows: list[Row] = []
        plain: list[int] = []
        positions: list[np.ndarray] = []
        seen = np.zeros(int(scheduled.sum()), dtype=bool)
        at = 0
        for i, plan in enumerate(plans):
            done, new = int(computed[i]), int(scheduled[i])
            if plan is None:
                plain.append(i)
                positions.append(np.arange(done, done + new))
                seen[at : at + new] = True
            else:
                mine = plan.rows(i, at, done, new)
                for row in mine:
                    seen[row.query_start : row.query_start + row.query_len] = True
                rows.extend(mine)
                positions.append(plan.positions(done, new))
            at += new
        return cls(tuple(rows), tuple(plain), np.flatnonzero(~seen), np.concatenate(positions))
