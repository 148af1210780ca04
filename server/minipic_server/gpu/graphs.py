"""CUDA graphs of decode batches that hold span requests: a second set beside vLLM's own.

Plain batches replay the stock graphs. A batch with span requests needs more kernels in its graph, so each full decode
graph has a twin, told apart by its descriptor's class.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import (
    BatchExecutionDescriptor,
    CudaGraphManager,
    ModelCudaGraphManager,
)

from minipic_server.gpu.model_state import SpanModelState


@dataclass(frozen=True)
class SpanDescriptor(BatchExecutionDescriptor):
    """The same batch shape, with span requests."""

    @classmethod
    def twin(cls, other: BatchExecutionDescriptor) -> "SpanDescriptor":
        """Of a stock descriptor."""
        return cls(**{f.name: getattr(other, f.name) for f in fields(other)})


class _TellsModelState(CudaGraphManager):
    """Stands behind ModelCudaGraphManager in the method order, to see which descriptor is captured."""

    model_state: SpanModelState

    def capture(self, create_forward_fn: Any, *args: Any, **kwargs: Any) -> None:
        def create(desc: BatchExecutionDescriptor, warmup: bool) -> Callable[[CUDAGraphMode], None]:
            with self.model_state.capturing(isinstance(desc, SpanDescriptor)):
                return create_forward_fn(desc, warmup)

        super().capture(create, *args, **kwargs)


class SpanGraphManager(ModelCudaGraphManager, _TellsModelState):
    """Captures and picks twins; ``model_state`` says whether the step at hand needs one."""

    def __init__(self, model_state: SpanModelState, *args: Any, **kwargs: Any) -> None:
        self.model_state = model_state
        super().__init__(*args, **kwargs)

    def _init_candidates(self) -> None:
        super()._init_candidates()
        both: list[BatchExecutionDescriptor] = []
        for desc in self._capture_descs.get(CUDAGraphMode.FULL, ()):
            stock = [desc] if self.model_state.stock else []
            both += [*stock, SpanDescriptor.twin(desc)] if desc.uniform_token_count == 1 else stock
        if both:
            self._capture_descs[CUDAGraphMode.FULL] = both

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        *args: Any,
        **kwargs: Any,
    ) -> BatchExecutionDescriptor:
        """As the base class; a batch with span requests never gets a graph captured without them."""
        loras = num_active_loras
        desc = super().dispatch(num_reqs, num_tokens, uniform_token_count, loras, *args, **kwargs)
        if desc.cg_mode != CUDAGraphMode.FULL or not self.model_state.span_step:
            return desc
        twin = SpanDescriptor.twin(desc)
        if twin in self.graphs and self.model_state.fits_graph():
            return twin
        key = num_tokens, desc.num_active_loras
        partial = [d for d in self._candidates.get(key, ()) if d.cg_mode == CUDAGraphMode.PIECEWISE]
        if partial and self._graphs_captured:
            return partial[0]
        return BatchExecutionDescriptor(
            CUDAGraphMode.NONE, num_tokens, num_reqs, num_active_loras=desc.num_active_loras
        )
