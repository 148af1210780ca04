"""The CPU attention backend: stock vLLM's for plain requests, rows and runs for span requests."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from minipic_server.cpu import native
from minipic_server.cpu.attention import RowBlocks, attend
from minipic_server.cpu.native import RowTensors
from minipic_server.plan import StepPlan
from minipic_server.rope import TURN_ATTRIBUTE


@dataclass
class SpanCPUMetadata(CPUAttentionMetadata):
    """Stock metadata of the batch's plain requests, and the rows of its span requests."""

    rows: RowTensors | tuple[RowBlocks, ...] = ()  # for the compiled kernel, or for PyTorch without a compiler
    plain_tokens: torch.Tensor | None = None  # batch token indices of the plain requests. [n]
    invisible: torch.Tensor | None = None  # batch token indices whose output is zero. [n]


class SpanCPUMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds stock metadata unless the runner has set a step plan."""

    step: StepPlan | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.isa not in ("vec", "vec16"):
            # AMX packs keys in a layout that rows can't read.
            self.isa = "vec" if self.block_size % 32 == 0 else "vec16"
            self._set_isa_to_layers(self.layer_names)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        step = self.step
        if step is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        starts = common.query_start_loc.tolist()
        table = common.block_table_tensor
        rows: RowTensors | tuple[RowBlocks, ...]
        if native.serves(self.head_dim, self.num_heads, self.num_kv_heads, self.block_size, self.dtype):
            rows = RowTensors.build(step.rows, table, self.block_size)
        else:
            rows = tuple(RowBlocks.build(row, table[row.request], self.block_size) for row in step.rows)
        invisible = torch.from_numpy(step.invisible)
        if not step.plain:
            nothing = torch.empty(0, dtype=torch.int64)
            return SpanCPUMetadata(
                num_actual_tokens=common.num_actual_tokens,
                max_query_len=common.max_query_len,
                query_start_loc=common.query_start_loc,
                max_seq_len=common.max_seq_len,
                seq_lens=common.seq_lens,
                block_table=common.block_table_tensor,
                slot_mapping=common.slot_mapping,
                scheduler_metadata=None,
                rows=rows,
                plain_tokens=nothing,
                invisible=invisible,
            )
        index = torch.tensor(step.plain)
        tokens = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in step.plain])
        lengths = torch.tensor([0] + [starts[i + 1] - starts[i] for i in step.plain])
        begins = lengths.cumsum(0).to(common.query_start_loc.dtype)
        part = replace(
            common,
            num_reqs=len(step.plain),
            num_actual_tokens=len(tokens),
            max_query_len=int(lengths.max()),
            query_start_loc=begins,
            query_start_loc_cpu=begins,
            seq_lens=common.seq_lens[index],
            block_table_tensor=common.block_table_tensor[index],
        )
        stock = super().build(common_prefix_len, part, fast_build)
        return SpanCPUMetadata(**vars(stock), rows=rows, plain_tokens=tokens, invisible=invisible)


class SpanCPUAttention(CPUAttentionBackendImpl):
    """Stock attention; rows of span requests by ``attend``."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not isinstance(attn_metadata, SpanCPUMetadata):
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        tokens = attn_metadata.plain_tokens
        if tokens is not None and len(tokens):
            part = torch.empty(len(tokens), *output.shape[1:], dtype=output.dtype)
            q, k, v = query[tokens], key[tokens], value[tokens]
            super().forward(layer, q, k, v, kv_cache, attn_metadata, part, *args, **kwargs)
            output[tokens] = part
        output[attn_metadata.invisible] = 0
        table = getattr(layer, TURN_ATTRIBUTE)
        if isinstance(attn_metadata.rows, RowTensors):
            native.span_attention(query.contiguous(), kv_cache, output, attn_metadata.rows, table, scale=self.scale)
        else:
            for row in attn_metadata.rows:
                attend(query, kv_cache, output, row, table, scale=self.scale)
        return output


class SpanCPUBackend(CPUAttentionBackend):
    """Registered over ``CPU_ATTN``."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_impl_cls() -> type[SpanCPUAttention]:
        return SpanCPUAttention

    @staticmethod
    def get_builder_cls() -> type[SpanCPUMetadataBuilder]:
        return SpanCPUMetadataBuilder
