# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""What is done before the first request: compiling every kernel (Triton does it at first use), checking FlashAttention."""

from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger

from minipic_server.gpu.backend import STEP
from minipic_server.gpu.runs import RequestRuns
from minipic_server.gpu.step import least_contiguous, plan_step
from minipic_server.rope import TURN_ATTRIBUTE

logger = init_logger(__name__)


def warm_up(runner: Any) -> None:
    """Run one layer's attention over block 0 for each kind of row; results are thrown away."""
    state = runner.model_state
    layer = next(m for m in runner.model.modules() if hasattr(m, TURN_ATTRIBUTE))
    shape = state.shape
    # A row of each class of tile, and a gathered one.
    lengths = sorted({1, 2, max(1, 32 // shape.groups), max(1, 64 // shape.groups), min(200, state.max_num_tokens)})
    # One key run of each row is turned and one isn't; split and whole tiles both occur.
    context = np.array([[1, 8, 3], [0, 8, 0]], dtype=np.int32)
    for split in (1, 200):
        for n in lengths:
            runs = RequestRuns.plain()
            runs.contexts, runs.keys = [np.repeat(context, split, axis=0)], [16 * split]
            rows = runs.plan(0, 0, 0, n, np.zeros(n, dtype=np.int64))
            step = plan_step(
                rows,
                zero=np.zeros(0, dtype=np.int64),
                plain=False,
                tokens=n,
                shape=shape,
                scratch=state.scratch,
                upload=state._upload,
                gathers=state.stock,
            )
            _run(layer, step, n, shape, runner)
    state.contiguous = state.stock and same_bits(layer, shape)
    logger.info_once("MiniPIC: plain long prompts read %s keys", "contiguous" if state.contiguous else "paged")
    torch.cuda.synchronize()


def same_bits(layer: Any, shape: Any) -> bool:
    """Whether FlashAttention gives the same bits for contiguous keys as for pages, for layers of this shape."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    head, size, device = shape.head, layer.kv_cache.shape[2], layer.kv_cache.device
    gen = torch.Generator(device).manual_seed(0)
    # The shortest prompt that counts (step.plan_contiguous), and longer ones, alone and together.
    least = least_contiguous(shape, layer.impl.scratch.processors)
    for queries, lens in (
        ((least,), (least,)),
        ((2 * least,), (2 * least,)),
        ((least,), (least + 8000,)),
        ((4 * least,), (4 * least + 100,)),
        ((1, 700, least + 100), (900, 700, least + 1300)),
    ):
        pages = -(-max(lens) // size)
        cache = torch.randn(len(lens) * pages, size, shape.kv_heads, 2 * head, device=device, generator=gen)
        cache = cache.to(shape.dtype)
        if layer.kv_cache.stride(1) > layer.kv_cache.stride(2):  # heads before slots in memory
            cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
        table = torch.arange(len(lens) * pages, device=device, dtype=torch.int32).view(len(lens), pages)
        flat = torch.cat([cache[table[i].long()].flatten(0, 1)[:n] for i, n in enumerate(lens)])
        q = torch.randn(sum(queries), shape.heads, head, device=device, generator=gen).to(shape.dtype)
        cu = [torch.tensor(np.cumsum([0, *n]), device=device, dtype=torch.int32) for n in (queries, lens)]
        used = torch.tensor(lens, device=device, dtype=torch.int32)
        paged = cache.split(head, dim=-1), {"seqused_k": used, "block_table": table}
        contiguous = [t.contiguous() for t in flat.split(head, dim=-1)], {"cu_seqlens_k": cu[1]}
        out = [
            flash_attn_varlen_func(
                q,
                k,
                v,
                max_seqlen_q=max(queries),
                cu_seqlens_q=cu[0],
                max_seqlen_k=max(lens),
                softmax_scale=layer.impl.scale,
                causal=True,
                fa_version=layer.impl.vllm_flash_attn_version,
                **where,
            )
            for (k, v), where in (paged, contiguous)
        ]
        if not torch.equal(*out):
            return False
    return True


def _run(layer: Any, step: Any, tokens: int, shape: Any, runner: Any) -> None:
    class Metadata:
        block_table = torch.zeros(1, 64, dtype=torch.int32, device=runner.device)

    metadata: Any = Metadata()
    setattr(metadata, STEP, step)
    query = torch.zeros(tokens, shape.heads, shape.head, dtype=shape.dtype, device=runner.device)
    layer.impl.forward(layer, query, query, query, layer.kv_cache, metadata, torch.empty_like(query))
