"""Launching Triton kernels at a fraction of the usual cost on the CPU.

A question behind cached spans is a small step: its attention is launched layer by layer between CUDA graph pieces, and
``kernel[grid](...)`` costs 60 us of binding and specialising each time. Here the compiled kernel is kept under what
Triton would specialise on (types, alignment, integer values), and launched directly after that.
"""

from functools import cache
from typing import Any

from torch import Tensor

Constants = tuple[tuple[str, Any], ...]  # compile-time arguments by name, in the kernel's order, behind all others

_compiled: dict[Any, Any] = {}


def launch(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: Constants, *, warps: int) -> None:
    """Run ``kernel`` on a one-dimensional grid.

    Args:
        kernel: a ``triton.jit`` function whose compile-time parameters come last.
        programs: of the grid.
        arguments: tensors and numbers, in the kernel's order.
        constants: one object for equal constants, as from a cached function: it is told apart by identity.
        warps: of each program.
    """
    special = [a if type(a) is int else a.data_ptr() & 15 if type(a) is Tensor else 0 for a in arguments]
    types = [a.dtype for a in arguments if type(a) is Tensor]
    key = (id(kernel), id(constants), warps, *special, *types)
    known = _compiled.get(key)
    if known is None:
        compiled = kernel[(programs,)](*arguments, **dict(constants), num_warps=warps)
        if compiled is not None:  # None under the interpreter
            _compiled[key] = compiled, tuple(value for _, value in constants), constants
        return
    compiled, values, _ = known
    compiled[(programs, 1, 1)](*arguments, *values)


@cache
def power_of_two(n: int) -> int:
    """The next one, at least ``n``; Triton's own function costs microseconds."""
    return 1 << (n - 1).bit_length()
