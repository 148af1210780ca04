"""CUDA graphs of batches that hold span requests: beside vLLM's own.

Plain batches replay the stock graphs. A batch with span requests needs more kernels in its graph, so each full decode
graph has a twin, told apart by its descriptor's class. Small steps of span requests that don't just decode have graphs
of their own (questions.py).
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

from minipic_server.gpu import questions
from minipic_server.gpu.model_state import GraphKind, SpanModelState


@dataclass(frozen=True)
class SpanDescriptor(BatchExecutionDescriptor):
    """The same batch shape, with span requests."""

    @classmethod
    def twin(cls, other: BatchExecutionDescriptor) -> "SpanDescriptor":
        """Of a stock descriptor."""
        return cls(**{f.name: getattr(other, f.name) for f in fields(other)})


@dataclass(frozen=True)
class QuestionDescriptor(BatchExecutionDescriptor):
    """Few tokens of few span requests, whatever is cached before them."""


_KINDS: dict[type, GraphKind] = {SpanDescriptor: "decode", QuestionDescriptor: "question"}


class _TellsModelState(CudaGraphManager):
    """Stands behind ModelCudaGraphManager in the method order, to see which descriptor is captured."""

    model_state: SpanModelState

    def capture(self, create_forward_fn: Any, *args: Any, **kwargs: Any) -> None:
        def create(desc: BatchExecutionDescriptor, warmup: bool) -> Callable[[CUDAGraphMode], None]:
            with self.model_state.capturing(_KINDS.get(type(desc))):
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
            # The largest first: it makes the buffer that all of them leave their output in.
            both += self._question_descriptors()
            both.sort(key=lambda d: d.num_tokens, reverse=True)
            self._capture_descs[CUDAGraphMode.FULL] = both

    def _question_descriptors(self) -> list[BatchExecutionDescriptor]:
        most = self.vllm_config.scheduler_config.max_num_batched_tokens
        sizes = [n for n in questions.TOKENS if n <= most and n in self.compilation_config.cudagraph_capture_sizes]
        requests = min(questions.REQUESTS, self.max_num_reqs)
        return [
            QuestionDescriptor(CUDAGraphMode.FULL, n, min(n, requests), num_active_loras=loras)
            for n in sizes
            for loras in self.lora_capture_cases
        ]

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
        if not self.model_state.span_step:
            return desc
        if desc.cg_mode != CUDAGraphMode.FULL:
            return self._question(num_reqs, num_tokens, desc.num_active_loras) or desc
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

    def _question(self, num_reqs: int, num_tokens: int, loras: int) -> BatchExecutionDescriptor | None:
        """The smallest captured graph for a step that isn't decoding, if it fits one."""
        for desc in reversed(self._capture_descs.get(CUDAGraphMode.FULL, ())):
            fits = type(desc) is QuestionDescriptor and desc in self.graphs and desc.num_active_loras == loras
            if fits and desc.num_tokens >= num_tokens and (desc.num_reqs or 0) >= num_reqs:
                return desc if self.model_state.fits_question(desc.num_tokens) else None
        return None
