"""The compiled plan and the kernels' tables against the readable plan."""

from heapq import heapreplace
from itertools import pairwise

import numpy as np
import pytest
from kernel_problems import ANCHOR, CONTROL, layout_of, prompt

from minipic_sdk.layout import Placement, parse_layout
from minipic_server.gpu.runs import RequestRuns
from minipic_server.gpu.tables import AttendTables, FlatRuns, GatherTables, balanced_chunks
from minipic_server.plan import RequestPlan, Run, StepPlan

PARTS = [("head", 21), ("span", 40), ("span", 15), ("dependent", 30), ("span", 7), ("dependent", 19)]


def as_rows(compiled):
    return [
        (r.request, r.query_start, r.query_len, tuple(Run(*map(int, c)) for c in r.context), r.own_start, r.own_len)
        for r in compiled
    ]


def expected(rows):
    return [(r.request, r.query_start, r.query_len, r.context, r.own.start, r.own.length) for r in rows]


def moved(block):
    """PARTS with the first span behind the second, of which a few tokens are hidden, and an empty span."""
    parts = [*PARTS[:4], ("span", 0), *PARTS[4:]]
    places = [Placement(*p) for p in ((0,), (36,), (21, 3), (76,), (106,), (106,), (113,))]
    return parse_layout(prompt(parts, block), control=CONTROL, block_size=block, anchor=ANCHOR, placements=places)


@pytest.mark.parametrize("layout", [layout_of(PARTS, 16), layout_of(PARTS, 32), moved(16)])
def test_compiled_plan_equals_the_readable_plan_for_every_chunk(layout):
    plan = RequestPlan.from_layout(layout)
    runs = RequestRuns.of(layout)
    total = layout.num_tokens + 5
    for computed in range(0, total, 3):
        for scheduled in (1, 2, 17, total - computed):
            if computed + scheduled > total:
                continue
            positions = np.full(scheduled + 4, -7, dtype=np.int64)
            got = runs.plan(3, 4, computed, scheduled, positions)
            assert as_rows(got) == expected(plan.rows(3, 4, computed, scheduled))
            assert (positions[4:] == plan.positions(computed, scheduled)).all()
            assert (positions[:4] == -7).all()
            assert all(r.context_keys == r.context[:, 1].sum() for r in got)


def test_a_prompt_that_ends_in_a_span_stops_there():
    layout = layout_of([("head", 5), ("span", 10)], 16)
    runs = RequestRuns.of(layout)
    rows = runs.plan(0, 0, 16, 16, np.zeros(16, dtype=np.int64))
    assert [(r.own_start, r.own_len) for r in rows] == [(17, 10)]


def rows_of(*requests, block=16):
    rows, at = [], 0
    for i, (parts, computed, scheduled) in enumerate(requests):
        runs = RequestRuns.of(layout_of(parts, block))
        rows += runs.plan(i, at, computed, scheduled, np.zeros(at + scheduled, dtype=np.int64))
        at += scheduled
    return rows, at


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_pieces_cover_every_key_once_in_order(chunk):
    rows, _ = rows_of((PARTS, 0, 180), (PARTS, 178, 1))
    flat = FlatRuns.of(rows)
    pieces, first = flat.cut([chunk] * len(rows), 64)
    keys = [int(p[0]) + j for p in pieces for j in range(p[1])]
    want = [int(r[0]) + j for r in flat.run for j in range(r[1])]
    assert keys == want
    assert (pieces[:, 1] > 0).all() and (pieces[:, 1] <= 64).all()
    per_chunk = [int(pieces[a:b, 1].sum()) for a, b in pairwise(first)]
    assert per_chunk == [n for total in flat.total for n in np.diff([*range(0, total, chunk), total]).tolist()]


def test_tasks_have_slots_only_where_a_tile_is_split():
    rows, _ = rows_of((PARTS, 0, 180), (PARTS, 178, 1))
    zero = np.array([3, 5, *range(300, 311)])
    tables = AttendTables.of(rows, block_q=8, chunk=[64] * len(rows), tile=64, zero=zero)
    slots = tables.tasks[:, 6]
    assert sorted(slots[slots >= 0]) == list(range(tables.slots))
    assert tables.merges[0, 0] == len(tables.merges) - 1
    split = tables.merges[1:][tables.merges[1:, 3] > 0]
    assert int(split[:, 3].sum()) == tables.slots
    nothing = [(3, 1, 0, 0), (5, 1, 0, 0), (300, 8, 0, 0), (308, 3, 0, 0)]
    assert [tuple(m) for m in tables.merges[1 + len(split) :]] == nothing
    queries = [q for t in tables.tasks if t[6] < 0 for q in range(t[0], t[0] + t[1])]
    queries += [q for m in split for q in range(m[0], m[0] + m[1])]
    assert sorted(queries) == [q for r in rows for q in range(r.query_start, r.query_start + r.query_len)]


def test_sequences_of_a_gather_cover_the_tokens_and_gaps_have_no_keys():
    rows, total = rows_of((PARTS, 5, 150), (PARTS, 0, 80))
    tables = GatherTables.of(rows, first_token=0, last_token=total)
    assert tables.cu_q[0] == 0 and tables.cu_q[-1] == total
    assert tables.cu_k[-1] == sum(r.context_keys + r.own_len for r in rows)
    lens = dict(zip(tables.cu_q[:-1].tolist(), np.diff(tables.cu_k).tolist(), strict=True))
    for row in rows:
        assert lens.pop(row.query_start) == row.context_keys + row.own_len
    assert set(lens.values()) <= {0}
    places = sorted((int(m[4]), int(m[2])) for m in tables.moves)
    assert [a for a, _ in places] == [0, *np.cumsum([n for _, n in places])[:-1].tolist()]


def test_the_readable_step_plan_agrees_on_what_is_invisible():
    plan = RequestPlan.from_layout(layout_of(PARTS, 16))
    step = StepPlan.build([plan], np.array([0]), np.array([150]))
    rows, total = rows_of((PARTS, 0, 150))
    seen = {t for r in rows for t in range(r.query_start, r.query_start + r.query_len)}
    assert sorted(set(range(total)) - seen) == step.invisible.tolist()


def test_chunks_shrink_until_the_device_is_full_but_not_below_the_minimum():
    (row,), _ = rows_of((PARTS, 178, 1))
    (chunk,) = balanced_chunks([row], block_q=1, kv_heads=8, programs=528)
    assert chunk >= row.context_keys + row.own_len, "few keys are one task"
    long = row._replace(context_keys=100_000)
    (chunk,) = balanced_chunks([long], block_q=1, kv_heads=8, programs=528)
    assert 1400 < chunk < 1600
    short = row._replace(context_keys=4000)
    chunks = balanced_chunks([short] * 64, block_q=1, kv_heads=8, programs=528)
    assert min(chunks) >= 4020, "a remainder is not worth a task of its own"


@pytest.mark.parametrize("keys", [8052, 16_052, 32_052, 128_052])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_launch_runs_at_once(rows, keys):
    (row,), _ = rows_of((PARTS, 178, 1))
    chunks = balanced_chunks([row._replace(context_keys=keys)] * rows, block_q=32, kv_heads=8, programs=132)
    programs = sum(-(-(keys + row.own_len) // chunk) for chunk in chunks) * 8
    assert 0.7 * 132 < programs <= 132, "one that has to wait for another's end doubles the time"


UNEVEN = {
    "epic": ([2000 * i for i in range(1, 17)] + [32_000], 132),
    "one long": ([30_000] + [500] * 9, 132),
    "many": ([900, 4000] * 20, 132),
    "many tiles and one long": ([600] * 33 + [32_000], 132),
    "one long among many": ([128_000] + [500] * 132, 528),
    "some long among many": ([100_000] * 4 + [1000] * 252, 528),
}


@pytest.mark.parametrize(("lengths", "programs"), UNEVEN.values(), ids=UNEVEN)
def test_uneven_rows_end_together(lengths, programs):
    (row,), _ = rows_of((PARTS, 178, 1))
    rows = [row._replace(context_keys=n) for n in lengths]
    chunks = balanced_chunks(rows, block_q=32, kv_heads=8, programs=programs)
    processors = [0] * programs
    for n, chunk in zip(lengths, chunks, strict=True):
        for at in range(0, n, chunk):
            for _ in range(8):  # each program goes where one has ended
                heapreplace(processors, processors[0] + min(chunk, n - at))
    assert max(processors) < 1.75 * sum(lengths) * 8 / programs


@pytest.mark.parametrize(
    "lengths", [[300] * 7, [5000, 40, 900], [100_000] + [200] * 50, [9000] + [200] * 90, [700] * 40]
)
def test_there_are_never_more_tasks_than_graphs_have_room_for(lengths):
    (row,), _ = rows_of((PARTS, 178, 1))
    context = np.array([[0, 1, 5]], dtype=np.int32)
    rows = [row._replace(context=context * [[1, n, 1]], context_keys=n) for n in lengths]
    chunks = balanced_chunks(rows, block_q=1, kv_heads=2, programs=64)
    tables = AttendTables.of(rows, block_q=1, chunk=chunks, tile=64, zero=np.empty(0, dtype=np.int64))
    assert len(tables.tasks) <= len(rows) + 32


def test_busy_counts_the_keys_that_tiles_look_at():
    rows, _ = rows_of(([("head", 300)], 0, 300), ([("head", 300)], 0, 300))
    tables = GatherTables.of(rows, first_token=0, last_token=640)
    assert tables.busy(heads=4, rows=128) == 2 * 10 * 300  # 1200 matrix rows are 10 tiles; the last tokens have no keys
