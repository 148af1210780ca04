"""``gather`` against its reference."""

import pytest
import torch
from kernel_problems import make_problem

from minipic_server.gpu.tables import GatherTables
from minipic_server.kernels.gather import gather, gather_naive

RAG = [("head", 21), ("span", 140), ("span", 15), ("dependent", 9)]
CASES = {
    "cold": dict(requests=[(RAG, 0, 230)]),
    "question": dict(requests=[(RAG, 208, 10), (RAG, 214, 3)]),
    "gptj": dict(requests=[(RAG, 208, 10)], neox=False),
    "partial": dict(requests=[(RAG, 208, 10)], rotary=32),
    "partial-gptj": dict(requests=[(RAG, 208, 10)], rotary=32, neox=False),
    "head96": dict(requests=[(RAG, 208, 10)], head=96),
    "head32": dict(requests=[(RAG, 208, 4)], head=32),
    "head80": dict(requests=[(RAG, 208, 4)], head=80),
    "head256": dict(requests=[(RAG, 208, 10)], head=256, kv_heads=1),
    "block64": dict(requests=[(RAG, 320, 10)], block_size=64),
    "hnd": dict(requests=[(RAG, 208, 10)], layout="HND"),
    "bf16": dict(requests=[(RAG, 208, 10)], dtype=torch.bfloat16),
    "fp16": dict(requests=[(RAG, 208, 10)], dtype=torch.float16),
}


@pytest.mark.parametrize("name", CASES)
def test_gather_equals_its_reference(name, device):
    problem = make_problem(device=device, **CASES[name])
    total = problem.query.shape[0]
    tables = GatherTables.of(problem.compiled, first_token=0, last_token=total)
    _, kv_heads, _, double = problem.kv_cache.shape
    shape = (int(tables.cu_k[-1]) + 2, kv_heads, double // 2)
    keys = torch.full(shape, 7.0, device=device, dtype=problem.query.dtype)
    values = torch.full_like(keys, 7.0)
    moves = torch.from_numpy(tables.moves).to(device)
    for _ in range(1 if device == "cpu" else 2):  # the second launch takes the short way
        gather(problem.kv_cache, problem.block_table, problem.table, moves, keys, values)
    want_keys, want_values = gather_naive(problem.kv_cache, problem.block_table, problem.rows, problem.table)
    tolerance = 2e-6 if keys.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(keys[:-2], want_keys, atol=tolerance, rtol=tolerance)
    assert torch.equal(values[:-2], want_values)
    assert (keys[-2:] == 7).all() and (values[-2:] == 7).all()
