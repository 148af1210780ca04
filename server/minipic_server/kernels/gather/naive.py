"""What ``gather`` computes, in PyTorch: each row's visible keys, turned forth to where the row sees them."""

from collections.abc import Sequence

import torch

from minipic_server.kernels.attend.naive import cached
from minipic_server.plan import Row
from minipic_server.rope import TurnTable


def gather_naive(
    kv_cache: torch.Tensor, block_table: torch.Tensor, rows: Sequence[Row], table: TurnTable
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all rows, row after row, context before own. Each [keys, kv_heads, head].

    Args:
        kv_cache: [blocks, kv_heads, block_size, 2 * head]
        block_table: [requests, max blocks]
        rows: whose keys to gather.
        table: the layer's turns.
    """
    keys, values = [], []
    for row in rows:
        for run in (*row.context, row.own):
            k, v = cached(kv_cache, block_table, row.request, run.start, run.length)
            keys.append(table.turn(k, run.turn, sign=1))
            values.append(v)
    return torch.cat(keys), torch.cat(values)
