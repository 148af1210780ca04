"""Random attention problems: prompts with spans in a paged cache whose unused slots are NaN."""

from dataclasses import dataclass

import numpy as np
import torch

from minipic_sdk.layout import ControlTokens, Layout, parse_layout
from minipic_server.gpu.runs import RequestRuns, RowRuns
from minipic_server.plan import RequestPlan, Row
from minipic_server.rope import TurnTable

CONTROL = ControlTokens(1, 2, 3)
ANCHOR = (9, 8, 7)


@dataclass
class Problem:
    """One step's worth of attention inputs."""

    query: torch.Tensor  # [tokens, heads, head]
    kv_cache: torch.Tensor  # [blocks, kv_heads, block_size, 2 * head]
    block_table: torch.Tensor  # [requests, max blocks]
    rows: list[Row]
    compiled: list[RowRuns]
    positions: np.ndarray  # [tokens]
    table: TurnTable


def prompt(parts, block_size):
    """Token ids of parts such as ("head", 20), ("span", 100), ("dependent", 30): kind and visible tokens."""
    ids = []
    for kind, visible in parts:
        ids += [3] * (-len(ids) % block_size)
        first = {"head": [*ANCHOR], "span": [1], "dependent": [2]}[kind]
        ids += first + [50 + i % 40 for i in range(visible - (len(ANCHOR) if kind == "head" else 0))]
    return ids


def layout_of(parts, block_size) -> Layout:
    """The parsed layout of ``prompt(parts)``."""
    return parse_layout(prompt(parts, block_size), control=CONTROL, block_size=block_size, anchor=ANCHOR)


def make_problem(
    requests,
    *,
    block_size=16,
    kv_heads=2,
    groups=2,
    head=64,
    rotary=None,
    neox=True,
    dtype=torch.float32,
    device="cpu",
    layout="NHD",
    seed=0,
) -> Problem:
    """A step over ``requests``: (parts, computed, scheduled) each; scheduled may reach past the prompt by one."""
    gen = torch.Generator().manual_seed(seed)
    rotary = rotary or head
    rows, compiled = [], []
    total = sum(n for _, _, n in requests)
    positions = np.full(total, -1, dtype=np.int64)
    at = 0
    most = max(c + n for _, c, n in requests)
    pages = -(-most // block_size) + 1
    blocks = len(requests) * pages + 3
    table = torch.randperm(blocks, generator=gen)[: len(requests) * pages].reshape(len(requests), pages)
    shape = (blocks, block_size, kv_heads, 2 * head) if layout == "NHD" else (blocks, kv_heads, block_size, 2 * head)
    cache = torch.full(shape, float("nan"))
    cache = cache.transpose(1, 2) if layout == "NHD" else cache
    for i, (parts, computed, scheduled) in enumerate(requests):
        parsed = layout_of(parts, block_size)
        plan = RequestPlan.from_layout(parsed)
        rows += plan.rows(i, at, computed, scheduled)
        compiled += RequestRuns.of(parsed).plan(i, at, computed, scheduled, positions)
        end = computed + scheduled
        seen = np.zeros(end, dtype=bool)
        for s in plan.segments:
            seen[s.visible_start : min(s.visible_stop, end)] = True
        keys = torch.from_numpy(np.flatnonzero(seen))
        values = torch.randn(len(keys), kv_heads, 2 * head, generator=gen)
        cache[table[i, keys // block_size], :, keys % block_size] = values
        at += scheduled
    query = torch.randn(total, kv_heads * groups, head, generator=gen)
    frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
    turns = TurnTable.from_frequencies(frequencies.to(device), positions=max(most, 64), neox=neox)
    return Problem(
        query.to(device, dtype),
        cache.to(device, dtype),
        table.to(device, torch.int32),
        rows,
        compiled,
        positions,
        turns,
    )
