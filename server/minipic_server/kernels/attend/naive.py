"""What ``attend`` computes, in PyTorch: a softmax over runs that each see another turn of the query."""

from collections.abc import Sequence

import torch

from minipic_server.plan import Row
from minipic_server.rope import TurnTable


def cached(
    kv_cache: torch.Tensor, block_table: torch.Tensor, request: int, start: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of physical tokens [start, start + length) of a request. Each [length, kv_heads, head]."""
    size, head = kv_cache.shape[2], kv_cache.shape[3] // 2
    at = torch.arange(start, start + length, device=kv_cache.device)
    both = kv_cache[block_table[request, at // size].long(), :, at % size]
    return both[..., :head], both[..., head:]


def attend_naive(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    rows: Sequence[Row],
    table: TurnTable,
    *,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write the output of every row's tokens into ``out``; other tokens stay.

    Args:
        query: rotated by the model at canonical positions. [tokens, heads, head]
        kv_cache: keys, then values, on the last axis. [blocks, kv_heads, block_size, 2 * head]
        block_table: [requests, max blocks]
        rows: what to attend to.
        table: the layer's turns.
        scale: of the scores.
        out: [tokens, heads, head]
    """
    kv_heads = kv_cache.shape[1]
    for row in rows:
        tokens = slice(row.query_start, row.query_start + row.query_len)
        q = query[tokens]
        scores, values = [], []
        for run in (*row.context, row.own):
            keys, vals = cached(kv_cache, block_table, row.request, run.start, run.length)
            turned = table.turn(q, run.turn, sign=-1).float().unflatten(1, (kv_heads, -1))
            scores.append(torch.einsum("qkgd,nkd->kgqn", turned, keys.float()) * scale)
            values.append(vals.float())
        own = scores[-1]
        last = torch.arange(row.query_len, device=own.device) + row.own.length - row.query_len
        own.masked_fill_(torch.arange(row.own.length, device=own.device) > last[:, None], float("-inf"))
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        out[tokens] = torch.einsum("kgqn,nkd->qkgd", weights, torch.cat(values)).flatten(1, 2).to(out.dtype)
