"""GPU memory that spans need beyond the KV cache: allocated once, bounded, counted before vLLM sizes the cache."""

from dataclasses import dataclass

import numpy as np
import torch

from minipic_server.kernels.attend.kernel import PIECE_FIELDS, TASK_FIELDS, partial_slots, settings
from minipic_server.kernels.attend.merge import MERGE_FIELDS

SHARE = 0.015  # of what is left for the KV cache; the contract is 2 % with the tables
FEWEST_KEYS = 4096
GRAPH_PIECES = 1 << 17  # of a decode batch under a CUDA graph: 2 MiB, 4M keys; beyond, attention runs eagerly
WAVES = {16: 4, 32: 4, 64: 2, 128: 1}  # programs for each multiprocessor, by matrix rows of a tile; measured


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What every attention layer of the model has in common."""

    heads: int  # query heads on this device
    kv_heads: int
    head: int
    dtype: torch.dtype

    @property
    def groups(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def key_bytes(self) -> int:
        """Of one token's key and value in one layer."""
        return 2 * self.kv_heads * self.head * self.dtype.itemsize

    def block_q(self, query_len: int) -> int:
        """Queries of an ``attend`` tile for rows of this length: 1, or what fills 32, 64 or 128 matrix rows."""
        if query_len == 1:
            return 1
        rows = next((n for n in (32, 64) if query_len * self.groups <= n), 128)
        return max(1, rows // self.groups)

    def matrix_rows(self, block_q: int) -> int:
        """Matrix rows of a tile, as the kernel pads them."""
        return max(16, 1 << (block_q * self.groups - 1).bit_length())

    def piece_keys(self, block_q: int) -> int:
        """Keys of an ``attend`` piece at most."""
        return settings(self.matrix_rows(block_q), self.head, self.dtype).keys


@dataclass(frozen=True, slots=True)
class Scratch:
    """Buffers shared by all layers: they run one after another on one stream."""

    keys: torch.Tensor  # gathered. [tokens, kv_heads, head]
    values: torch.Tensor  # likewise
    output: torch.Tensor  # of long rows beside plain requests. [tokens, heads, head]
    partial: torch.Tensor  # float32 results of splits
    processors: int  # multiprocessors of the device

    @classmethod
    def allocate(
        cls, shape: AttentionShape, *, device: torch.device, budget: int, keys: int, queries: int
    ) -> "Scratch":
        """Within ``budget`` bytes if that leaves enough to work with.

        Args:
            shape: of the attention layers.
            device: where.
            budget: bytes.
            keys: gathered tokens that are ever useful.
            queries: tokens of the longest step.
        """
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
        tile = max(
            shape.block_q(n) * shape.groups * WAVES[shape.matrix_rows(shape.block_q(n))] for n in (1, 2, 17, 33, 999)
        )
        partial = 2 * processors * tile * (shape.head + 1)
        per_query = shape.heads * shape.head * shape.dtype.itemsize
        queries = max(1, min(queries, (budget - 4 * partial) // 4 // per_query))
        left = budget - 4 * partial - queries * per_query
        keys = max(FEWEST_KEYS, min(keys, left // shape.key_bytes))
        new = lambda n, heads: torch.empty(n, heads, shape.head, dtype=shape.dtype, device=device)
        return cls(
            new(keys, shape.kv_heads),
            new(keys, shape.kv_heads),
            new(queries, shape.heads),
            torch.empty(partial, dtype=torch.float32, device=device),
            processors,
        )

    @property
    def nbytes(self) -> int:
        """Total."""
        return sum(t.nbytes for t in (self.keys, self.values, self.output, self.partial))

    def slots(self, shape: AttentionShape, block_q: int) -> int:
        """Partial results of ``attend`` that fit, for tiles of ``block_q`` queries."""
        return partial_slots(self.partial, shape.heads, block_q, shape.head)

    def programs(self, rows: int) -> int:
        """``attend`` programs that the device runs at once, for tiles of this many matrix rows."""
        return self.processors * WAVES[min(128, rows)]


class GraphTables:
    """Tables of decode steps at fixed addresses, so that captured CUDA graphs can read them.

    One int32 buffer, written by one copy a step: tasks, merges, sequence lengths of the plain requests, pieces.
    """

    def __init__(self, *, requests: int, spare: int, device: torch.device) -> None:
        self.spare = spare  # tasks beyond one per request
        sizes = [(requests + spare) * TASK_FIELDS, (1 + requests) * MERGE_FIELDS, requests, GRAPH_PIECES * PIECE_FIELDS]
        ends = np.cumsum([-(-n // 4) * 4 for n in sizes])
        self.buffer = torch.zeros(int(ends[-1]), dtype=torch.int32, device=device)
        self._starts = (0, *ends[:-1].tolist())
        view = [self.buffer[a : a + n] for a, n in zip(self._starts, sizes, strict=True)]
        self.tasks = view[0].view(-1, TASK_FIELDS)
        self.merges = view[1].view(-1, MERGE_FIELDS)
        self.plain_lens = view[2]
        self.pieces = view[3].view(-1, PIECE_FIELDS)

    def fits(self, requests: int, pieces: int) -> bool:
        """Whether a decode batch can be replayed; splitting its rows cuts some pieces once more."""
        return pieces + requests + self.spare <= GRAPH_PIECES

    def pack(self, tasks: np.ndarray, merges: np.ndarray, plain_lens: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """The beginning of the buffer for a step; what it does not use is zero. [n]"""
        out = np.zeros(self._starts[3] + pieces.size, dtype=np.int32)
        for start, part in zip(self._starts, (tasks, merges, plain_lens, pieces), strict=True):
            out[start : start + part.size] = part.reshape(-1)
        return out
