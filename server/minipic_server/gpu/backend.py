# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""The attention backend: stock FlashAttention for plain requests, rows and runs for span requests.

A step without span requests carries stock metadata and runs stock code, to the bit (I8). The builder is stock as
well: what is new hangs on the metadata as one attribute, a ``DeviceStep``.
"""

from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.v1.attention.backend import AttentionLayer
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)

from minipic_server.gpu.scratch import Scratch
from minipic_server.gpu.step import DeviceStep, LongRows
from minipic_server.kernels.attend import attend
from minipic_server.kernels.gather import gather
from minipic_server.rope import TURN_ATTRIBUTE

logger = init_logger(__name__)

STEP = "minipic_step"  # attribute of the metadata: a DeviceStep
HEAD_SIZES = (32, 64, 80, 96, 128, 256)  # those that tests/kernels covers


class SpanFlashImpl(FlashAttentionImpl):
    """One layer's attention."""

    scratch: Scratch | None = None  # set by the model state once the model is loaded

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config_or_none()
        dtype = config.model_config.dtype if config is not None else torch.get_default_dtype()
        # Elsewhere every request, plain ones too, goes to the Triton kernel.
        self.stock = dtype in (torch.float16, torch.bfloat16) and self.vllm_flash_attn_version is not None
        how = f"FlashAttention {self.vllm_flash_attn_version}" if self.stock else "Triton"
        logger.info_once("MiniPIC attention: %s for plain requests and long rows, Triton for short rows", how)

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FlashAttentionMetadata,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As FlashAttentionImpl.forward; output: [tokens, heads, head]."""
        step: DeviceStep | None = getattr(attn_metadata, STEP, None)
        if step is None or step.plain:
            if not self.stock:
                return output.fill_(0)  # start-up runs: no requests
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
            if step is None:
                return output
        for rows in step.long:
            self._long(layer, query, key, value, kv_cache, attn_metadata, output, rows)
        assert self.scratch is not None
        for rows in step.short:
            attend(
                query,
                kv_cache,
                attn_metadata.block_table,
                getattr(layer, TURN_ATTRIBUTE),
                rows.tasks,
                rows.pieces,
                rows.merges,
                self.scratch.partial,
                scale=self.scale,
                block_q=rows.block_q,
                out=output,
            )
        return output

    def _long(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FlashAttentionMetadata,
        output: torch.Tensor,
        rows: LongRows,
    ) -> None:
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

        assert self.scratch is not None
        if rows.moves is not None:
            gather(
                kv_cache,
                attn_metadata.block_table,
                getattr(layer, TURN_ATTRIBUTE),
                rows.moves,
                self.scratch.keys,
                self.scratch.values,
            )
            key, value = self.scratch.keys, self.scratch.values
        if rows.first or rows.tokens is not None:  # else the tensors are used whole: slicing costs microseconds a layer
            query, output = query[rows.first : rows.last], output[rows.first : rows.last]
        to = output if rows.tokens is None else self.scratch.output[: rows.last - rows.first]
        flash_attn_varlen_func(
            q=query,
            k=key,
            v=value,
            out=to,
            cu_seqlens_q=rows.cu_q,
            max_seqlen_q=rows.max_q,
            cu_seqlens_k=rows.cu_k,
            max_seqlen_k=rows.max_k,
            softmax_scale=self.scale,
            causal=True,
            num_splits=rows.splits,
            fa_version=self.vllm_flash_attn_version,
        )
        if rows.tokens is not None:
            output.index_copy_(0, rows.tokens.long(), to.index_select(0, rows.tokens))


class SpanFlashBuilder(FlashAttentionMetadataBuilder):
    """Stock, except for dtypes that FlashAttention does not know."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kv_cache_dtype not in (torch.float16, torch.bfloat16):
            self.aot_schedule = False


class MiniPICFlashBackend(FlashAttentionBackend):
    """Registered as CUSTOM."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SpanFlashImpl]:
        return SpanFlashImpl

    @staticmethod
    def get_builder_cls() -> type[SpanFlashBuilder]:
        return SpanFlashBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size in HEAD_SIZES
