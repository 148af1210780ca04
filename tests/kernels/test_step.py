"""A whole step, from the batch to the output, on the CPU: stock FlashAttention is stood in for by PyTorch."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kernel_problems import layout_of, make_problem

pytest.importorskip("vllm")

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backends import fa_utils
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from minipic_server.gpu import step as step_module
from minipic_server.gpu.backend import SpanFlashImpl
from minipic_server.gpu.model_state import SpanModelState
from minipic_server.gpu.questions import Questions
from minipic_server.gpu.runs import RequestRuns
from minipic_server.gpu.scratch import AttentionShape, GraphTables, Scratch
from minipic_server.gpu.step import plan_contiguous
from minipic_server.kernels.attend import attend_naive
from minipic_server.kernels.gather import gather_naive
from minipic_server.plan import Row, Run

RAG = [("head", 21), ("span", 40), ("span", 75), ("dependent", 30)]  # 207 physical tokens
PLAIN = [("head", 300)]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Batch:
    """What is read of vLLM's InputBatch."""

    num_scheduled_tokens: np.ndarray
    num_computed_tokens_np: np.ndarray
    positions: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int = 0
    num_tokens: int = 0
    num_tokens_after_padding: int = 0
    num_reqs_after_padding: int = 0
    logits_indices: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


def paged_reference(self, layer, query, key, value, kv_cache, metadata, output, *_, **__):
    """Stock attention: causal over each request's first seq_lens keys; zeros without keys."""
    rows, at = [], 0
    for i, n in enumerate(metadata.query_lens):
        if length := int(metadata.seq_lens[i]):
            rows.append(Row(i, at, n, (), Run(0, length, 0), np.zeros((0, 3))))
        output[at : at + n] = 0
        at += n
    attend_naive(query, kv_cache, metadata.block_table, rows, layer.minipic_turn, scale=self.scale, out=output)
    return output


def varlen_reference(q, k, v, out, cu_seqlens_q, cu_seqlens_k, softmax_scale, **_):
    """Contiguous attention: causal, aligned bottom right."""
    groups = q.shape[1] // k.shape[1]
    for i in range(len(cu_seqlens_q) - 1):
        a, b = int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1])
        c, d = int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1])
        if c == d:
            out[a:b] = 0
            continue
        keys, values = (x[c:d].float().repeat_interleave(groups, 1) for x in (k, v))
        scores = torch.einsum("qhd,nhd->hqn", q[a:b].float(), keys) * softmax_scale
        last = torch.arange(b - a, device=q.device) + (d - c) - (b - a)
        scores.masked_fill_(torch.arange(d - c, device=q.device) > last[:, None], float("-inf"))
        out[a:b] = torch.einsum("hqn,nhd->qhd", scores.softmax(-1), values).to(out.dtype)


class World:
    """A model state and one layer around a random problem."""

    def __init__(self, monkeypatch, requests, *, stock=True, keys=4096, queries=4096):
        self.problem = p = make_problem(requests, device=DEVICE)
        self.requests = requests
        _, heads, head = p.query.shape
        monkeypatch.setattr(FlashAttentionImpl, "forward", paged_reference)
        monkeypatch.setattr(fa_utils, "flash_attn_varlen_func", varlen_reference, raising=False)
        state = self.state = SpanModelState.__new__(SpanModelState)
        state.shape = AttentionShape(heads, p.kv_cache.shape[1], head, p.query.dtype)
        new = lambda n, h: torch.full((n, h, head), float("nan"), device=DEVICE)
        state.scratch = Scratch(new(keys, 2), new(keys, 2), new(queries, heads), torch.zeros(400_000, device=DEVICE), 4)
        state.tables = GraphTables(requests=len(requests) + 3, spare=16, device=DEVICE)
        state.device, state.stock, state.rope_state = DEVICE, stock, None
        state.questions = Questions(state.shape, state.scratch, DEVICE)
        state.contiguous = state._only_replayed = False
        state._capturing = state._positions = state._physical = None
        state.spans = {}
        for i, (parts, _, _) in enumerate(requests):
            layout = layout_of(parts, 16)
            if layout.has_control:
                state.spans[i] = RequestRuns.of(layout)
        state.select(range(len(requests)), *(np.array([r[i] for r in requests]) for i in (1, 2)))

        def prepare(_, batch, *args, **kwargs):
            lens = [n for _, _, n in requests]
            return {"layer": SimpleNamespace(block_table=p.block_table, seq_lens=batch.seq_lens, query_lens=lens)}

        monkeypatch.setattr(DefaultModelState, "prepare_attn", prepare)
        self.layer = SimpleNamespace(minipic_turn=p.table)
        impl = self.impl = SpanFlashImpl.__new__(SpanFlashImpl)
        impl.stock, impl.scratch, impl.scale, impl.vllm_flash_attn_version = stock, state.scratch, head**-0.5, 3

    def batch(self, padded=0, graph=0):
        new = np.array([n for _, _, n in self.requests])
        done = np.array([c for _, c, _ in self.requests])
        count = len(self.requests)
        physical = np.concatenate([np.arange(c, c + n) for c, n in zip(done, new, strict=True)])
        lens = torch.tensor((done + new).tolist() + [0] * padded, dtype=torch.int32, device=DEVICE)
        return Batch(
            new,
            done,
            torch.from_numpy(np.append(physical, [0] * padded)).to(DEVICE),
            lens,
            count,
            int(new.sum()),
            graph or int(new.sum()),
            count + padded,
        )

    def forward(self, mode=CUDAGraphMode.NONE, padded=0, graph=0):
        batch = self.batch(padded, graph)
        metadata = self.state.prepare_attn(batch, mode, None, None, None, None)["layer"]
        inputs = self.state.prepare_inputs(batch, None)
        p = self.problem
        out = torch.full_like(p.query, float("nan"))
        self.impl.forward(self.layer, p.query, p.query, p.query, p.kv_cache, metadata, out)
        return out, batch, inputs

    def expected(self):
        """Rows of span requests by the reference; plain requests are rows of their own; the rest is zero."""
        p = self.problem
        out = torch.zeros_like(p.query)
        attend_naive(p.query, p.kv_cache, p.block_table, p.rows, p.table, scale=p.query.shape[-1] ** -0.5, out=out)
        return out


BATCHES = {
    "cold": [(RAG, 0, 207)],
    "chunk-that-ends-in-padding": [(RAG, 20, 60)],
    "padding-only": [(RAG, 21, 11)],
    "question": [(RAG, 176, 31)],
    "decodes": [(RAG, 207, 1), (RAG, 250, 1)],
    "mixed": [(PLAIN, 290, 1), (RAG, 210, 1), (RAG, 177, 3), (PLAIN, 0, 40), (RAG, 0, 190), (PLAIN, 5, 70)],
    "spans-of-several": [(RAG, 208, 1), (RAG, 176, 31), (RAG, 0, 150), (RAG, 0, 207)],
    "plain-and-padding": [(RAG, 25, 1), (PLAIN, 100, 1)],
}


@pytest.mark.parametrize("limits", [{}, {"keys": 200}, {"queries": 80}], ids=["roomy", "few-keys", "few-queries"])
@pytest.mark.parametrize("name", BATCHES)
def test_a_step_equals_the_reference(name, limits, monkeypatch):
    world = World(monkeypatch, BATCHES[name], **limits)
    out, batch, _ = world.forward()
    torch.testing.assert_close(out, world.expected(), atol=3e-6, rtol=3e-5)
    assert batch.positions.tolist() == world.problem.positions.tolist()
    physical = world.batch().positions
    assert torch.equal(world.state.sampling_batch(batch).positions, physical)


@pytest.mark.parametrize("padded", [0, 2])
@pytest.mark.parametrize("name", ["decodes", "plain-and-padding"])
def test_a_replayed_step_equals_the_reference(name, padded, monkeypatch):
    world = World(monkeypatch, BATCHES[name])
    world.state.tables.buffer.fill_(1)  # what an earlier, bigger step may have left
    world.state.tables.tasks.fill_(0)
    out, _, _ = world.forward(CUDAGraphMode.FULL, padded)
    torch.testing.assert_close(out, world.expected(), atol=3e-6, rtol=3e-5)


def test_without_flash_attention_every_request_goes_to_the_kernel(monkeypatch):
    world = World(monkeypatch, BATCHES["mixed"], stock=False)
    monkeypatch.setattr(FlashAttentionImpl, "forward", None)
    monkeypatch.setattr(fa_utils, "flash_attn_varlen_func", None)
    out, _, _ = world.forward()
    torch.testing.assert_close(out, world.expected(), atol=3e-6, rtol=3e-5)


def test_a_plain_step_is_stock(monkeypatch):
    world = World(monkeypatch, [(PLAIN, 0, 40), (PLAIN, 5, 70)])
    assert not world.state.span_step
    batch = world.batch()
    before = batch.positions.clone()
    metadata = world.state.prepare_attn(batch, CUDAGraphMode.NONE, None, None, None, None)["layer"]
    assert metadata.seq_lens is batch.seq_lens and not hasattr(metadata, "minipic_step")
    assert world.state.prepare_inputs(batch, None) == {}
    assert torch.equal(batch.positions, before)
    assert world.state.sampling_batch(batch) is batch


@pytest.mark.parametrize("requests", [[(PLAIN, 0, 90), (PLAIN, 0, 70)], [(PLAIN, 40, 1), (PLAIN, 8, 90)]])
def test_a_long_plain_step_may_read_contiguous_keys(requests, monkeypatch):
    world = World(monkeypatch, requests)
    world.state.contiguous = True
    monkeypatch.setattr(step_module, "LONG_QUERY", 64)
    monkeypatch.setattr(step_module, "QUERIES_PER_KEY", 20)
    monkeypatch.setattr(step_module, "TILE_ROWS", 1)
    monkeypatch.setattr(FlashAttentionImpl, "forward", None)
    p = world.problem
    batch = world.batch()
    metadata = world.state.prepare_attn(batch, CUDAGraphMode.NONE, None, None, None, None)["layer"]
    # Without a cached context the step's own keys are read where the model put them.
    own = [gather_naive(p.kv_cache, p.block_table, [r], p.table) for r in p.rows]
    key, value = (torch.cat([pair[i] for pair in own]) for i in (0, 1))
    if any(c for _, c, _ in requests):
        key, value = key[:0], value[:0]
    out = torch.full_like(p.query, float("nan"))
    world.impl.forward(world.layer, p.query, key, value, p.kv_cache, metadata, out)
    torch.testing.assert_close(out, world.expected(), atol=3e-6, rtol=3e-5)
    assert world.state.prepare_inputs(batch, None) == {} and world.state.sampling_batch(batch) is batch


@pytest.mark.parametrize(("done", "new"), [([0, 0], [400, 300]), ([30_000], [600]), ([900] * 40, [1] * 39 + [700])])
def test_pages_are_kept_where_gathering_does_not_pay(done, new, monkeypatch):
    world = World(monkeypatch, [(PLAIN, 0, 40)])
    scratch, shape = replace(world.state.scratch, keys=torch.empty(100_000, 0)), world.state.shape
    assert plan_contiguous(np.array(done), np.array(new), shape=shape, scratch=scratch, upload=torch.from_numpy) is None


def test_pages_are_kept_where_flash_attention_would_split_keys(monkeypatch):
    state = World(monkeypatch, [(PLAIN, 0, 40)]).state
    ask = lambda n, processors: plan_contiguous(
        np.array([0]),
        np.array([n]),
        shape=state.shape,
        scratch=replace(state.scratch, processors=processors),
        upload=torch.from_numpy,
    )
    assert ask(900, 8) is not None and ask(900, 132) is None


def test_a_capture_needs_no_requests_and_reads_the_same_tables(monkeypatch):
    world = World(monkeypatch, BATCHES["decodes"])
    world.state.select((), np.zeros(0), np.zeros(0))
    with world.state.capturing("decode"):
        metadata = world.state.prepare_attn(world.batch(), CUDAGraphMode.NONE, None, None, None, None, for_capture=True)
    step = metadata["layer"].minipic_step
    assert step.plain and step.short[0].tasks.data_ptr() == world.state.tables.tasks.data_ptr()
    assert metadata["layer"].seq_lens.data_ptr() == world.state.tables.plain_lens.data_ptr()
    assert len(step.short[0].tasks) == 2 + world.state.tables.spare and not step.short[0].tasks.any()


QUESTIONS = {
    **{name: BATCHES[name] for name in ("question", "decodes", "chunk-that-ends-in-padding")},
    "several": [(RAG, 208, 1), (RAG, 176, 31), (RAG, 100, 20), (RAG, 0, 150)],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_replayed_question_equals_the_reference(name, monkeypatch):
    world = World(monkeypatch, QUESTIONS[name])
    monkeypatch.setattr(FlashAttentionImpl, "forward", None)
    tables = world.state.questions._tables
    tables.buffer.fill_(1)  # what an earlier, bigger step may have left
    tokens = sum(n for _, _, n in QUESTIONS[name])
    assert world.state.fits_question(256)
    out, batch, _ = world.forward(CUDAGraphMode.FULL, 8 - len(QUESTIONS[name]), 256)
    torch.testing.assert_close(out, world.expected(), atol=3e-6, rtol=3e-5)
    assert batch.positions[:tokens].tolist() == world.problem.positions.tolist()


def test_nobody_asks_for_metadata_of_a_replayed_question(monkeypatch):
    world = World(monkeypatch, next(iter(QUESTIONS.values())))
    monkeypatch.setattr(DefaultModelState, "prepare_attn", None)
    world.state._only_replayed = True
    assert world.state.fits_question(256)
    assert world.state.prepare_attn(None, CUDAGraphMode.FULL, None, None, None, None) == {}
    assert world.state.questions._tables.buffer.any()


def test_what_does_not_fit_a_question_graph_is_not_replayed(monkeypatch):
    mixed = World(monkeypatch, BATCHES["mixed"])
    assert not mixed.state.fits_question(256)  # plain requests are stock's
    padding = World(monkeypatch, BATCHES["padding-only"])
    assert not padding.state.fits_question(256)
    world = World(monkeypatch, BATCHES["question"])
    world.state.questions._slots = 0
    world.state.spans[0].contexts = [np.full((600, 3), 64, dtype=np.int32)] * 4
    world.state.spans[0].keys = [600 * 64] * 4
    world.state._planned = None
    assert not world.state.fits_question(256)


def test_a_batch_with_too_many_runs_is_not_replayed(monkeypatch):
    world = World(monkeypatch, BATCHES["decodes"])
    assert world.state.fits_graph()
    runs = world.state.spans[0]
    runs.contexts = [np.ones((1 << 17, 3), dtype=np.int32)]
    assert not world.state.fits_graph()
