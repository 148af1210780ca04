"""Which CUDA graph a step gets, decided without a GPU."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from minipic_server.gpu.graphs import QuestionDescriptor, SpanDescriptor, SpanGraphManager

PIECEWISE = BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, 64, None)
DECODE = BatchExecutionDescriptor(CUDAGraphMode.FULL, 64, 64, uniform_token_count=1)


@pytest.fixture
def manager(monkeypatch):
    """A manager with captured graphs of 16 to 128 tokens, that vLLM would give a piecewise graph."""
    made = SpanGraphManager.__new__(SpanGraphManager)
    made.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=200))
    made.compilation_config = SimpleNamespace(cudagraph_capture_sizes=[1, 16, 32, 64, 128, 256])
    made.lora_capture_cases, made.max_num_reqs = [0, 2], 64
    made._candidates, made._graphs_captured = {}, True
    full = [DECODE, SpanDescriptor.twin(DECODE), *made._question_descriptors()]
    made._capture_descs = {CUDAGraphMode.FULL: sorted(full, key=lambda d: d.num_tokens, reverse=True)}
    made.graphs = dict.fromkeys(full)
    made.model_state = SimpleNamespace(span_step=True, fits_graph=lambda: True, fits_question=lambda tokens: True)
    made.stock = PIECEWISE
    monkeypatch.setattr(CudaGraphManager, "dispatch", lambda self, *_, **__: self.stock)
    return made


def test_a_question_gets_the_smallest_graph_that_holds_it(manager):
    for tokens, size in ((1, 16), (16, 16), (33, 64), (65, 128)):
        chosen = manager.dispatch(2, tokens, None, 0)
        assert type(chosen) is QuestionDescriptor and chosen.num_tokens == size and chosen.num_active_loras == 0
    assert manager.dispatch(2, 129, None, 0) is PIECEWISE  # 256 tokens are never scheduled here
    assert manager.dispatch(9, 20, None, 0) is PIECEWISE


def test_adapters_have_graphs_of_their_own(manager):
    manager.stock = BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, 64, None, num_active_loras=2)
    assert manager.dispatch(1, 33, None, 1).num_active_loras == 2
    manager.stock = BatchExecutionDescriptor(CUDAGraphMode.PIECEWISE, 64, None, num_active_loras=1)
    assert manager.dispatch(1, 33, None, 1) is manager.stock


def test_plain_steps_and_steps_that_do_not_fit_get_what_vllm_chose(manager):
    manager.model_state.fits_question = lambda tokens: False
    assert manager.dispatch(2, 33, None, 0) is PIECEWISE
    manager.model_state.span_step = False
    manager.model_state.fits_question = None
    assert manager.dispatch(2, 33, None, 0) is PIECEWISE
    manager.stock = DECODE
    assert manager.dispatch(64, 64, 1, 0) is DECODE


def test_decoding_over_spans_gets_the_twin(manager):
    manager.stock = DECODE
    manager.model_state.fits_question = None
    assert type(manager.dispatch(64, 64, 1, 0)) is SpanDescriptor
