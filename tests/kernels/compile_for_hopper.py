"""Compiles every kernel variant for an H100/H200 on a machine without a GPU; run by test_compile.py in a new process.

Triton brings its own assembler; only what would touch a device is stood in for. The interpreter does not know the
compiler's rules (types of loop-carried values, layouts, shared memory), so this is what keeps them.
"""

import itertools
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

SHARED = 227 * 1024  # bytes a program may use


class Device:
    """Enough of a CUDA driver for Triton to compile and 'launch'."""

    def __init__(self):
        self.utils = self
        self.launched = []

    def launcher_cls(self, src, metadata):
        return lambda *args: self.launched.append(metadata.name)

    def load_binary(self, name, kernel, shared, device):
        assert shared <= SHARED, f"{name} needs {shared} bytes of shared memory"
        return 1, 2, 10, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": SHARED, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def main():
    device = Device()
    driver.set_active(device)
    from kernel_problems import make_problem

    from minipic_server.gpu.scratch import AttentionShape
    from minipic_server.gpu.tables import AttendTables, GatherTables, balanced_chunks
    from minipic_server.kernels.attend import attend
    from minipic_server.kernels.gather import gather

    parts = [("head", 21), ("span", 40), ("span", 900), ("dependent", 9)]
    shapes = {
        "bf16": dict(head=128, kv_heads=2, groups=4),
        "head64": dict(head=64, kv_heads=1, groups=3, dtype=torch.float16),
        "head96": dict(head=96, kv_heads=1, groups=1),
        "head256": dict(head=256, kv_heads=1, groups=8),
        "gptj": dict(head=128, kv_heads=1, groups=4, neox=False),
        "partial": dict(head=64, kv_heads=1, groups=4, rotary=32),
        "fp32": dict(head=64, kv_heads=1, groups=2, dtype=torch.float32),
        "hnd": dict(head=128, kv_heads=2, groups=4, layout="HND"),
    }
    chosen = sys.argv[1:] or list(shapes)
    for name, queries in itertools.product(chosen, (1, 2, 16, 100)):
        p = make_problem([(parts, 1010, queries)], **{"dtype": torch.bfloat16, **shapes[name]})
        heads, head = p.query.shape[1:]
        shape = AttentionShape(heads, p.kv_cache.shape[1], head, p.query.dtype)
        block_q = shape.block_q(queries)
        chunk = balanced_chunks(p.compiled, block_q=block_q, kv_heads=shape.kv_heads, programs=64)
        zero = torch.zeros(0, dtype=torch.int64).numpy()
        tables = AttendTables.of(p.compiled, block_q=block_q, chunk=chunk, tile=shape.piece_keys(block_q), zero=zero)
        assert tables.slots, "a split tile, so that the merge is compiled too"
        tasks, pieces, merges = (torch.from_numpy(t) for t in tables[:3])
        partial = torch.zeros(tables.slots * heads * block_q * (head + 1))
        for _ in range(2):
            attend(
                p.query,
                p.kv_cache,
                p.block_table,
                p.table,
                tasks,
                pieces,
                merges,
                partial,
                scale=0.1,
                block_q=block_q,
                out=torch.empty_like(p.query),
                exact=p.query.dtype == torch.float32,
            )
        moves = torch.from_numpy(GatherTables.of(p.compiled, first_token=0, last_token=queries).moves)
        keys = torch.empty(2000, shape.kv_heads, head, dtype=p.query.dtype)
        gather(p.kv_cache, p.block_table, p.table, moves, keys, torch.empty_like(keys))
    assert device.launched.count("_attend_kernel") == 2 * device.launched.count("_gather_kernel") == 8 * len(chosen)
    assert device.launched.count("_merge_kernel") == 8 * len(chosen)
    print("compiled", *chosen)


if __name__ == "__main__":
    main()
