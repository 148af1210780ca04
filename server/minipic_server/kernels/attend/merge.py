# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Puts the results of splits together (kernel.py).

An item is one query of one head: few programs that each merge many queries would wait for memory most of the time.

    merges [1 + n, 4]  first token, queries, first slot, slots (0: the output is zero); the first row instead holds n,
                       so that a table may be padded under CUDA graphs at no cost
"""

from functools import cache

import torch
import triton
import triton.language as tl

from minipic_server.kernels.launch import Constants, launch, power_of_two

MERGE_FIELDS = 4
_WARPS = 4


@triton.jit
def _merge_kernel(
    merge_ptr,
    part_ptr,  # [slots, heads, BLOCK_Q, D] float32
    lse_ptr,  # [slots, heads, BLOCK_Q] float32
    out_ptr,  # [tokens, heads, D]
    out_token,
    out_head,
    heads,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    SPLITS: tl.constexpr,  # results that it reads at once
):
    d = tl.arange(0, D_PAD)
    s = tl.arange(0, SPLITS)
    for item in range(tl.program_id(0), tl.load(merge_ptr) * heads * BLOCK_Q, tl.num_programs(0)):
        merge = merge_ptr + (1 + item // (heads * BLOCK_Q)) * 4
        first, count, slot, slots = tl.load(merge), tl.load(merge + 1), tl.load(merge + 2), tl.load(merge + 3)
        q, head = item % BLOCK_Q, item // BLOCK_Q % heads
        if q < count:
            top, total = float("-inf"), 0.0
            acc = tl.zeros([D_PAD], tl.float32)
            for i in range(0, slots, SPLITS):
                live = i + s < slots
                part = ((slot + i + s).to(tl.int64) * heads + head) * BLOCK_Q + q
                lse = tl.load(lse_ptr + part, mask=live, other=float("-inf"))
                read = live[:, None] & (d < D)[None, :]
                parts = tl.load(part_ptr + part[:, None] * D + d[None, :], mask=read, other=0.0)
                peak = tl.maximum(top, tl.max(lse, 0))
                base = tl.where(peak == float("-inf"), 0.0, peak)
                weight, fade = tl.exp2(lse - base), tl.exp2(top - base)
                acc = acc * fade + tl.sum(weight[:, None] * parts, 0)
                total = total * fade + tl.sum(weight, 0)
                top = peak
            result = acc / tl.where(total == 0.0, 1.0, total)
            to = out_ptr + (first + q).to(tl.int64) * out_token + head * out_head + d
            tl.store(to, result.to(out_ptr.dtype.element_ty), mask=d < D)


def merge(merges: torch.Tensor, partial: torch.Tensor, lse: torch.Tensor, out: torch.Tensor, block_q: int) -> None:
    """Write the outputs of split tiles, and zeros.

    Args:
        merges: int32. [1 + n, 4]
        partial: results, normalised. [slots, heads, block_q, head], float32
        lse: their log-sum-exps, base 2. [slots, heads, block_q], float32
        out: [tokens, heads, head]
        block_q: queries a tile holds at most.
    """
    _, heads, head = out.shape
    programs = min((merges.shape[0] - 1) * heads * block_q, _programs())
    strides = out.stride(0), out.stride(1), heads
    launch(_merge_kernel, programs, (merges, partial, lse, out, *strides), _constants(head, block_q), warps=_WARPS)


@cache
def _programs() -> int:
    """That run at once."""
    if not torch.cuda.is_available():
        return 4
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.multi_processor_count * properties.max_threads_per_multi_processor // (32 * _WARPS)


@cache
def _constants(head: int, block_q: int) -> Constants:
    splits = 32 if block_q == 1 else 16  # one query's keys are split the most
    return (("D", head), ("D_PAD", max(16, power_of_two(head))), ("BLOCK_Q", block_q), ("SPLITS", splits))
