"""Attention of one row over the runs of keys it sees, in PyTorch, on vLLM's paged CPU cache.

Cache layout (pinned by tests/server/test_upstream_compatibility.py): ``kv_cache`` is
[blocks, kv_heads, block_size, 2 * head]; read as [blocks, kv_heads, 2 * block_size, head], its first half holds the
block's keys transposed, [head, block_size], its second half the values, [block_size, head].
"""

from typing import NamedTuple

import torch

from minipic_server.plan import Row
from minipic_server.rope import TurnTable

QUERIES_AT_ONCE = 256  # bounds the score matrix of a long row


class RowBlocks(NamedTuple):
    """A row, as gathered blocks: every block belongs to one run, so it has one turn."""

    query_start: int
    query_len: int
    blocks: torch.Tensor  # physical block ids, context first, then the row's own segment. [blocks]
    groups: tuple[tuple[int, int, int], ...]  # (turn, first, last) over gathered slots; together they cover all
    hidden: torch.Tensor  # context slots outside every run, -inf there and 0 elsewhere. [slots]
    own_first: int  # gathered slot of the first key of the row's own segment
    own_before: int  # keys of the own segment before the row's first query

    @classmethod
    def build(cls, row: Row, block_table: torch.Tensor, size: int) -> "RowBlocks":
        """Translate physical token runs into gathered slots. block_table: [max blocks]."""
        indices: list[torch.Tensor] = []
        groups: list[tuple[int, int, int]] = []
        shown: list[tuple[int, int]] = []
        at = 0
        for run in (*row.context, row.own):
            first, last = run.start // size, (run.start + run.length - 1) // size + 1
            indices.append(block_table[first:last])
            shown.append((at + run.start - first * size, at + run.start - first * size + run.length))
            end = at + (last - first) * size
            if groups and groups[-1][0] == run.turn:
                groups[-1] = (run.turn, groups[-1][1], end)
            else:
                groups.append((run.turn, at, end))
            at = end
        hidden = torch.full((at,), float("-inf"))
        for first, last in shown:
            hidden[first:last] = 0
        return cls(
            row.query_start,
            row.query_len,
            torch.cat(indices).long(),
            tuple(groups),
            hidden,
            shown[-1][0],
            row.own.length - row.query_len,
        )


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    output: torch.Tensor,
    row: RowBlocks,
    table: TurnTable,
    *,
    scale: float,
) -> None:
    """Write the attention output of one row.

    Args:
        query: turned by the model at canonical positions. [tokens, heads, head]
        kv_cache: the layer's paged cache. [blocks, kv_heads, block_size, 2 * head]
        output: written at the row's tokens only. [tokens, heads, head]
        row: what to attend to.
        table: the layer's turn table.
        scale: of the scores.
    """
    _, kv_heads, size, double = kv_cache.shape
    head = double // 2
    count = len(row.blocks)
    gathered = kv_cache.view(len(kv_cache), kv_heads, 2 * size, head).index_select(0, row.blocks).float()
    keys = gathered[:, :, :size].reshape(count, kv_heads, head, size)
    keys = keys.permute(1, 2, 0, 3).reshape(kv_heads, head, count * size)
    values = gathered[:, :, size:].transpose(0, 1).reshape(kv_heads, count * size, head)
    # Slots outside every run may never have been written: NaN there would survive a weight of zero.
    values = values.masked_fill((row.hidden < 0)[None, :, None], 0.0)
    for first in range(0, row.query_len, QUERIES_AT_ONCE):
        last = min(first + QUERIES_AT_ONCE, row.query_len)
        tokens = slice(row.query_start + first, row.query_start + last)
        visible = row.own_first + row.own_before + last
        output[tokens] = _queries(
            query[tokens].float(), keys[..., :visible], values[:, :visible], row, first, table, scale
        )


def _queries(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    row: RowBlocks,
    first: int,
    table: TurnTable,
    scale: float,
) -> torch.Tensor:
    """query: [n, heads, head]; keys: [kv_heads, head, slots]; values: [kv_heads, slots, head] -> [n, heads, head]."""
    count, heads, head = query.shape
    kv_heads, _, slots = keys.shape
    scores = torch.empty(kv_heads, count * heads // kv_heads, slots)
    for turn, begin, end in row.groups:
        end = min(end, slots)
        turned = table.turn(query, turn, sign=-1) if turn else query
        grouped = turned.view(count, kv_heads, -1, head).transpose(0, 1).reshape(kv_heads, -1, head)
        scores[..., begin:end] = torch.bmm(grouped, keys[..., begin:end])
    scores.mul_(scale).add_(row.hidden[:slots])
    if count > 1:
        reach = torch.arange(count) + row.own_first + row.own_before + first
        future = torch.arange(row.own_first, slots) > reach[:, None]
        by_query = scores.view(kv_heads, count, -1, slots)
        by_query[..., row.own_first :].masked_fill_(future[None, :, None, :], float("-inf"))
    out = torch.bmm(scores.softmax(dim=-1), values)
    return out.view(kv_heads, count, -1, head).transpose(0, 1).reshape(count, heads, head)
