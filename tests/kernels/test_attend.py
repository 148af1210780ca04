# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""``attend`` against its reference."""

import numpy as np
import pytest
import torch
from kernel_problems import make_problem

from minipic_server.gpu.tables import AttendTables
from minipic_server.kernels.attend import attend, attend_naive
from minipic_server.kernels.attend.kernel import Settings

RAG = [("head", 21), ("span", 40), ("span", 15), ("dependent", 9)]
DEEP = [("head", 5), ("span", 70), ("dependent", 33), ("span", 3), ("dependent", 12)]
LONE = [("head", 37)]
CASES = {
    "decode": dict(requests=[(RAG, 137, 1), (DEEP, 172, 1), (LONE, 40, 1)], block_q=1),
    "question": dict(requests=[(RAG, 112, 10), (DEEP, 160, 13)], block_q=8),
    "cold": dict(requests=[(RAG, 0, 122)], block_q=16),
    "gptj": dict(requests=[(RAG, 118, 4), (RAG, 130, 1)], block_q=8, neox=False),
    "partial": dict(requests=[(RAG, 118, 4)], block_q=8, rotary=32),
    "partial-gptj": dict(requests=[(RAG, 118, 4)], block_q=8, rotary=32, neox=False),
    "head96": dict(requests=[(RAG, 118, 4)], block_q=4, head=96),
    "head32": dict(requests=[(RAG, 118, 4)], block_q=8, head=32),
    "head80": dict(requests=[(RAG, 118, 4)], block_q=8, head=80),
    "head256": dict(requests=[(RAG, 118, 4)], block_q=4, head=256, kv_heads=1),
    "head128-gqa4": dict(requests=[(DEEP, 170, 3)], block_q=4, head=128, groups=4, kv_heads=1),
    "gqa3": dict(requests=[(DEEP, 170, 3)], block_q=5, groups=3, kv_heads=3),
    "mha": dict(requests=[(RAG, 120, 2)], block_q=16, groups=1, kv_heads=3),
    "block64": dict(requests=[(RAG, 260, 3)], block_q=8, block_size=64),
    "hnd": dict(requests=[(RAG, 118, 4)], block_q=8, layout="HND"),
    "bf16": dict(requests=[(RAG, 112, 10), (DEEP, 172, 1)], block_q=8, dtype=torch.bfloat16),
    "fp16": dict(requests=[(RAG, 112, 10)], block_q=8, dtype=torch.float16),
}


def run(problem, *, block_q, chunk, zero=(), tile=64):
    zero = np.array(zero, dtype=np.int64)
    chunks = [chunk] * len(problem.compiled)
    tables = AttendTables.of(problem.compiled, block_q=block_q, chunk=chunks, tile=tile, zero=zero)
    heads, head = problem.query.shape[1:]
    device = problem.query.device
    out = torch.full_like(problem.query, float("nan"))
    partial = torch.full((tables.slots * heads * block_q * (head + 1),), float("nan"), device=device)
    on_device = [torch.from_numpy(t).to(device) for t in (tables.tasks, tables.pieces, tables.merges)]
    for _ in range(1 if device.type == "cpu" else 2):  # the second launch takes the short way
        attend(
            problem.query,
            problem.kv_cache,
            problem.block_table,
            problem.table,
            *on_device,
            partial,
            scale=head**-0.5,
            block_q=block_q,
            out=out,
            compiled=Settings(tile, 4, 1 if problem.query.dtype == torch.float32 else 2),
        )
    return out


@pytest.mark.parametrize(("chunk", "tile"), [(48, 16), (10_000, 64)], ids=["split", "whole"])
@pytest.mark.parametrize("name", CASES)
def test_attend_equals_its_reference(name, chunk, tile, device):
    case = dict(CASES[name])
    block_q = case.pop("block_q")
    problem = make_problem(device=device, **case)
    out = run(problem, block_q=block_q, chunk=chunk, tile=tile)
    want = torch.full_like(problem.query, float("nan"))
    scale = problem.query.shape[-1] ** -0.5
    attend_naive(
        problem.query, problem.kv_cache, problem.block_table, problem.rows, problem.table, scale=scale, out=want
    )
    seen = ~want[:, 0, 0].isnan()
    assert torch.equal(~out[:, 0, 0].isnan(), seen), "wrote other tokens than the rows'"
    error = (out[seen].float() - want[seen].float()).norm() / want[seen].float().norm()
    assert error < (2e-5 if problem.query.dtype == torch.float32 else 1e-2)


def test_tokens_to_zero_are_zero_and_the_others_stay(device):
    problem = make_problem([(RAG, 112, 10)], device=device)
    out = run(problem, block_q=8, chunk=10_000, zero=[0])
    assert (out[0] == 0).all() and not out[1:].isnan().any()


def test_table_rows_without_queries_are_skipped(device):
    problem = make_problem([(RAG, 137, 1)], device=device)
    tables = AttendTables.of(problem.compiled, block_q=1, chunk=[64], tile=32, zero=np.empty(0, dtype=np.int64))
    pad = lambda t, n: torch.from_numpy(np.concatenate([t, np.zeros((n, t.shape[1]), dtype=np.int32)])).to(device)
    outs = []
    for n in (0, 5):
        out = torch.zeros_like(problem.query)
        partial = torch.zeros(100_000, device=device)
        pieces = torch.from_numpy(tables.pieces).to(device)
        attend(
            problem.query,
            problem.kv_cache,
            problem.block_table,
            problem.table,
            pad(tables.tasks, n),
            pieces,
            pad(tables.merges, n),
            partial,
            scale=0.125,
            block_q=1,
            out=out,
        )
        outs.append(out)
    assert torch.equal(*outs) and outs[0].any()
