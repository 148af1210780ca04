"""Few tokens of few span requests as one CUDA graph: questions behind cached spans, above all.

vLLM captures whole steps of decoding only; anything else runs layer by layer, launched by the CPU, which takes longer
than the work of a step this small. Its attention is one ``attend`` launch over tables at fixed addresses, so the whole
step can be captured, for a few sizes.
"""

from collections.abc import Sequence

import numpy as np
import torch

from minipic_server.gpu.runs import RowRuns
from minipic_server.gpu.scratch import GRAPH_PIECES, AttentionShape, GraphTables, Scratch
from minipic_server.gpu.step import DeviceStep, ShortRows, attend_tables
from minipic_server.gpu.tables import AttendTables

REQUESTS = 8  # of a step
TOKENS = (16, 32, 64, 128, 256, 384, 512)  # of a step, padding included; those of vLLM's capture sizes are captured
MIN_SEGMENT = 16  # tokens: no KV block is smaller
_MATRIX_ROWS = 128


class Questions:
    """Tables that the captured steps read."""

    def __init__(self, shape: AttentionShape, scratch: Scratch, device: torch.device) -> None:
        self._shape, self._scratch = shape, scratch
        self._block_q = max(1, _MATRIX_ROWS // shape.groups)
        self._programs = scratch.programs(shape.matrix_rows(self._block_q))
        self._slots = scratch.slots(shape, self._block_q)
        most = max(max(self._sizes(n)) for n in TOKENS)
        self._tables = GraphTables(requests=most, spare=0, device=device)

    @property
    def nbytes(self) -> int:
        """GPU memory of the tables."""
        return self._tables.buffer.nbytes

    def _sizes(self, tokens: int) -> tuple[int, int]:
        """Tasks and merges of a captured step: ``tiles`` of up to 8 rows (more may not fit), tasks as ``attend_tables`` makes them.

        Every program of a launch costs, also one that finds nothing to do, so steps with more stretches of invisible
        tokens than one for each segment's end, which fill at least a block each, are not for graphs.
        """
        tiles = tokens // self._block_q + REQUESTS
        stretches = tokens // MIN_SEGMENT + REQUESTS
        return self._programs // self._shape.kv_heads + 1 + 2 * tiles, 1 + stretches + tiles

    def plan(self, rows: Sequence[RowRuns], zero: np.ndarray, tokens: int) -> AttendTables | None:
        """Tables of a step, or ``None`` if it doesn't fit a graph of ``tokens``.

        Args:
            rows: everything visible that the step computes, in token order.
            zero: its invisible tokens. [n]
            tokens: of the graph.
        """
        if not rows:
            return None
        made = attend_tables(rows, zero, block_q=self._block_q, shape=self._shape, scratch=self._scratch)
        tasks, merges = self._sizes(tokens)
        fits = len(made.tasks) <= tasks and len(made.merges) <= merges and made.slots <= self._slots
        return made if fits and len(made.pieces) <= GRAPH_PIECES else None

    def packed(self, made: AttendTables) -> tuple[np.ndarray, torch.Tensor]:
        """What to copy before a replay, and where to."""
        packed = self._tables.pack(made.tasks, made.merges, np.zeros(0, np.int32), made.pieces)
        return packed, self._tables.buffer[: len(packed)]

    def step(self, tokens: int) -> DeviceStep:
        """What a graph of ``tokens`` runs in every layer."""
        tasks, merges = self._sizes(tokens)
        tables = self._tables
        return DeviceStep(
            False, short=[ShortRows(self._block_q, tables.tasks[:tasks], tables.pieces, tables.merges[:merges])]
        )
