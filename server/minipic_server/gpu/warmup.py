"""Compiling every kernel variant before the first request: Triton compiles at first use, seconds each."""

from typing import Any

import numpy as np
import torch

from minipic_server.gpu.backend import STEP
from minipic_server.gpu.runs import RequestRuns
from minipic_server.gpu.step import plan_step
from minipic_server.rope import TURN_ATTRIBUTE

QUERY_LENGTHS = (1, 2, 17, 33, 200)  # one row of each class of tile, and a gathered one


def warm_up(runner: Any) -> None:
    """Run one layer's attention over block 0 for each kind of row; results are thrown away."""
    state = runner.model_state
    layer = next(m for m in runner.model.modules() if hasattr(m, TURN_ATTRIBUTE))
    shape = state.shape
    lengths = [n for n in QUERY_LENGTHS if n <= state.max_num_tokens]
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
    torch.cuda.synchronize()


def _run(layer: Any, step: Any, tokens: int, shape: Any, runner: Any) -> None:
    class Metadata:
        block_table = torch.zeros(1, 64, dtype=torch.int32, device=runner.device)

    metadata: Any = Metadata()
    setattr(metadata, STEP, step)
    query = torch.zeros(tokens, shape.heads, shape.head, dtype=shape.dtype, device=runner.device)
    layer.impl.forward(layer, query, query, query, layer.kv_cache, metadata, torch.empty_like(query))
