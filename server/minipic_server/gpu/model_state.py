# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""What the model runner knows of span requests: their plans, and what each step's attention must do.

A step, in the order the runner calls: ``select`` (who is in the batch; it decides which CUDA graph may run),
``prepare_attn`` (tables), ``prepare_inputs`` (canonical positions), forward, ``sampling_batch`` (physical positions
again, which the sampler counts by).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from minipic_sdk.protocol import RequestMeta
from minipic_server.config import SpanConfig
from minipic_server.gpu.backend import STEP, SpanFlashImpl
from minipic_server.gpu.questions import Questions
from minipic_server.gpu.runs import RequestRuns, RowRuns
from minipic_server.gpu.scratch import SHARE, AttentionShape, GraphTables, Scratch
from minipic_server.gpu.step import DeviceStep, ShortRows, attend_tables, plan_contiguous, plan_step
from minipic_server.gpu.tables import AttendTables
from minipic_server.refusals import UnsupportedError
from minipic_server.state import opted_in, passed_layout

GraphKind = Literal["decode", "question"]


class SpanModelState(DefaultModelState):
    """Plain requests: exactly its base class. Span requests: tables for attention, positions for the model."""

    def __init__(self, vllm_config: Any, model: nn.Module, encoder_cache: Any, device: torch.device) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        self.config = SpanConfig.of(vllm_config)
        self.spans: dict[int, RequestRuns] = {}  # by request index; span requests only
        self._index: dict[str, int] = {}
        self._selected: list[RequestRuns | None] | None = None  # the batch's, in batch order; None: a plain step
        self._done = self._new = np.zeros(0, dtype=np.int32)
        self._planned: tuple[list[RowRuns], np.ndarray] | None = None
        self._question: AttendTables | None = None  # of a step that replays a graph of questions.py
        self._positions: np.ndarray | None = None
        self._physical: torch.Tensor | None = None
        self._capturing: GraphKind | None = None
        # A question's graph has no stock attention: only a KV connector or a drafter would read its metadata.
        self._only_replayed = not (vllm_config.kv_transfer_config or vllm_config.speculative_config)
        layers = [m for m in model.modules() if isinstance(m, Attention)]
        self.shape = _common_shape(layers, self.dtype)
        self.stock = layers[0].impl.stock
        self.contiguous = False  # whether contiguous keys give the bits that pages give; found out by warm_up
        self.scratch = self._allocate(layers)
        spare = -(-self.scratch.programs(16) // self.shape.kv_heads)
        self.tables = GraphTables(requests=self.max_num_reqs, spare=spare, device=device)
        self.questions = Questions(self.shape, self.scratch, device)

    def _allocate(self, layers: Sequence[Any]) -> Scratch:
        cache = self.vllm_config.cache_config
        if cache.kv_cache_memory_bytes:
            free = cache.kv_cache_memory_bytes
        else:
            total = torch.cuda.get_device_properties(self.device).total_memory
            free = int(total * cache.gpu_memory_utilization) - torch.cuda.memory_allocated(self.device)
        scratch = Scratch.allocate(
            self.shape,
            device=self.device,
            budget=int(SHARE * max(0, free)),
            keys=self.max_model_len + self.max_num_tokens,
            queries=self.max_num_tokens,
        )
        for layer in layers:
            layer.impl.scratch = scratch
        return scratch

    @property
    def nbytes(self) -> int:
        """Extra GPU memory, turn tables not counted."""
        return self.scratch.nbytes + self.tables.buffer.nbytes + self.questions.nbytes

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        super().add_request(req_index, new_req_data)
        self.spans.pop(req_index, None)
        text = opted_in(new_req_data.sampling_params)
        if text is None or self.config is None or new_req_data.prompt_token_ids is None:
            return
        layout = passed_layout(new_req_data.sampling_params)
        if layout is None:
            layout = RequestMeta.from_json(text).parse(
                new_req_data.prompt_token_ids,
                control=self.config.control,
                block_size=self.config.block_size,
                checked=True,
            )
        if layout.has_control:
            self.spans[req_index] = RequestRuns.of(layout)
            self._index[new_req_data.req_id] = req_index

    def remove_request(self, req_id: str) -> None:
        super().remove_request(req_id)
        index = self._index.pop(req_id, None)
        if index is not None:
            self.spans.pop(index, None)

    @property
    def span_step(self) -> bool:
        """Whether the step being prepared needs more than stock attention."""
        return self._selected is not None or not self.stock

    def select(self, requests: Sequence[int], done: np.ndarray, new: np.ndarray) -> None:
        """Note the requests of the next step, in batch order; none for a start-up run.

        Args:
            requests: indices of their states.
            done: tokens of each in the cache. [requests]
            new: tokens of each that the step computes. [requests]
        """
        self._physical = self._selected = self._planned = self._question = None
        if (self.spans and any(i in self.spans for i in requests)) or (not self.stock and len(requests)):
            other = None if self.stock else RequestRuns.plain()
            self._selected = [self.spans.get(i, other) for i in requests]
            self._done, self._new = done, new

    def fits_graph(self) -> bool:
        """Whether the selected batch, if all of it decodes, fits the tables that captured graphs read."""
        batch = self._selected or []
        keys = self.shape.piece_keys(1)
        pieces = sum(r.pieces(keys, n) for r, n in zip(batch, self._done.tolist(), strict=False) if r is not None)
        return self.tables.fits(len(batch), pieces)

    def fits_question(self, tokens: int) -> bool:
        """Whether the selected batch can replay a graph of questions.py; if so, the step is prepared for it."""
        if self._selected is not None and None not in self._selected:
            rows, zero = self._plan()
            self._question = self.questions.plan(rows, zero, tokens)
        return self._question is not None

    @contextmanager
    def capturing(self, kind: GraphKind | None) -> Iterator[None]:
        """While a graph for batches with span requests is captured."""
        self._capturing = kind
        try:
            yield
        finally:
            self._capturing = None

    def prepare_attn(
        self,
        input_batch: InputBatch,
        cudagraph_mode: CUDAGraphMode,
        block_tables: Any,
        slot_mappings: torch.Tensor,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Stock metadata, with span requests a ``DeviceStep`` on it; nothing for a replayed question, which reads tables."""
        replays = self._capturing == "decode" or cudagraph_mode == CUDAGraphMode.FULL
        if self._capturing == "question":
            step = self.questions.step(input_batch.num_tokens)
        elif self._question is not None and replays:
            packed, where = self.questions.packed(self._question)
            async_tensor_h2d(packed, out=where)
            if self._only_replayed:
                return {}
            step = self.questions.step(input_batch.num_tokens_after_padding)
        elif not self._capturing and (self._selected is None or for_capture):
            step = self._plain_step(input_batch, replays or for_capture)
        else:
            rows, zero = self._plan()
            count = input_batch.num_reqs_after_padding
            if replays:
                step = self._replayed(rows, zero, self._plain_lens(count), count)
            else:
                step = plan_step(
                    rows,
                    zero=zero,
                    plain=self._has_plain(),
                    tokens=input_batch.num_tokens,
                    shape=self.shape,
                    scratch=self.scratch,
                    upload=self._upload,
                    gathers=self.stock,
                )
            if self.stock and (replays or step.plain):
                # Span requests have no keys for the stock call: it writes zeros, they are filled in afterwards.
                plain = self.tables.plain_lens if replays else self._upload(self._plain_lens(count))
                input_batch = replace(input_batch, seq_lens=plain[:count])
        args = input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups, kv_cache_config
        metadata = super().prepare_attn(*args, for_capture=for_capture, **kwargs)
        if step is not None:
            for layer in metadata.values():
                setattr(layer, STEP, step)
        return metadata

    def prepare_inputs(self, input_batch: InputBatch, req_states: Any) -> dict[str, Any]:
        """Positions are overwritten in place: captured graphs read them at their address."""
        if self._positions is not None:
            positions = input_batch.positions[: len(self._positions)]
            self._physical = positions.clone()
            async_tensor_h2d(self._positions, out=positions)
            self._positions = None
        return super().prepare_inputs(input_batch, req_states)

    def sampling_batch(self, input_batch: InputBatch) -> InputBatch:
        """The batch with the positions that the sampler counts by (seeds, min_tokens)."""
        return input_batch if self._physical is None else replace(input_batch, positions=self._physical)

    def _plain_step(self, batch: InputBatch, captured: bool) -> DeviceStep | None:
        if captured:
            # Nothing to do; elsewhere the tables of an earlier step must not be replayed.
            return None if self.stock else self._replayed([], [], np.zeros(0, np.int32), 0)
        if not self.contiguous:
            return None
        done, new = batch.num_computed_tokens_np, batch.num_scheduled_tokens
        return plan_contiguous(done, new, shape=self.shape, scratch=self.scratch, upload=self._upload)

    def _has_plain(self) -> bool:
        return self._selected is None or None in self._selected

    def _plain_lens(self, count: int) -> np.ndarray:
        """Keys of the batch's plain requests, zero for the others and for padding. [count]"""
        lens = np.zeros(count, dtype=np.int32)
        for i, runs in enumerate(self._selected or ()):
            if runs is None:
                lens[i] = self._done[i] + self._new[i]
        return lens

    def _plan(self) -> tuple[list[RowRuns], np.ndarray]:
        """Rows of the batch's span requests, and their invisible tokens."""
        if self._planned is not None:
            return self._planned
        rows: list[RowRuns] = []
        if self._selected is None:  # capturing
            return rows, np.zeros(0, dtype=np.int64)
        computed, scheduled = self._done.tolist(), self._new.tolist()
        tokens = sum(scheduled)
        positions = np.zeros(tokens, dtype=np.int64)
        visible = np.zeros(tokens + 1, dtype=np.int32)
        at = 0
        for i, runs in enumerate(self._selected):
            count = scheduled[i]
            if runs is None:
                positions[at : at + count] = np.arange(computed[i], computed[i] + count)
                visible[at] += 1
                visible[at + count] -= 1
            else:
                mine = runs.plan(i, at, computed[i], count, positions)
                for row in mine:
                    visible[row.query_start] += 1
                    visible[row.query_start + row.query_len] -= 1
                rows += mine
            at += count
        self._positions = positions
        self._planned = rows, np.flatnonzero(visible[:-1].cumsum() == 0)
        return self._planned

    def _replayed(self, rows: list[RowRuns], zero: Any, lens: np.ndarray, count: int) -> DeviceStep:
        """Write the step into the tables that a captured graph of ``count`` requests reads."""
        if rows:
            made = attend_tables(rows, zero, block_q=1, shape=self.shape, scratch=self.scratch)
        else:
            made = AttendTables.zeros(zero)
        packed = self.tables.pack(made.tasks, made.merges, lens, made.pieces)
        async_tensor_h2d(packed, out=self.tables.buffer[: len(packed)])
        tables = self.tables
        short = ShortRows(1, tables.tasks[: count + tables.spare], tables.pieces, tables.merges[: 1 + count])
        return DeviceStep(plain=self.stock, short=[short] if count else [])

    def _upload(self, table: np.ndarray) -> torch.Tensor:
        return async_tensor_h2d(table, device=self.device)


def span_model_state_cls(stock: type) -> type[SpanModelState]:
    """Our model state in place of vLLM's choice for this model, if it is the one we extend."""
    if not issubclass(stock, DefaultModelState):
        raise UnsupportedError(f"models that need {stock.__name__}")
    return SpanModelState


def _common_shape(layers: Sequence[Any], dtype: torch.dtype) -> AttentionShape:
    impls = [layer.impl for layer in layers]
    for layer in layers:
        if not isinstance(layer.impl, SpanFlashImpl):
            raise UnsupportedError(f"layer {layer.layer_name!r} has {type(layer.impl).__name__}")
    shapes = {AttentionShape(i.num_heads, i.num_kv_heads, i.head_size, dtype) for i in impls}
    if len(shapes) != 1:
        raise UnsupportedError(f"attention layers of {len(shapes)} different shapes")
    return shapes.pop()
