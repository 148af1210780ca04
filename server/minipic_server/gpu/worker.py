# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""The CUDA worker and model runner: subclasses, no patch. Selected with ``--worker-cls``."""

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from minipic_server.gpu.backend import SpanFlashImpl
from minipic_server.gpu.graphs import SpanGraphManager
from minipic_server.gpu.model_state import SpanModelState, span_model_state_cls
from minipic_server.gpu.warmup import warm_up
from minipic_server.refusals import UnsupportedError, check_model
from minipic_server.rope import TURN_ATTRIBUTE


class SpanGPUModelRunner(GPUModelRunner):
    """vLLM's model runner V2 with our model state and CUDA graphs."""

    model_state: SpanModelState

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        before = torch.cuda.memory_allocated(self.device)
        check_model(self.model, self.vllm_config, SpanFlashImpl)
        if not isinstance(self.model_state, SpanModelState):
            chosen = span_model_state_cls(type(self.model_state))
            self.model_state = chosen(self.vllm_config, self.model, self.encoder_cache, self.device)
            # vLLM sizes the KV cache by what it knows to be in use.
            self.model_memory_usage += torch.cuda.memory_allocated(self.device) - before

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        stock = self.cudagraph_manager
        if stock is not None:
            self.cudagraph_manager = SpanGraphManager(
                self.model_state,
                self.vllm_config,
                self.device,
                stock.cudagraph_mode,
                decode_query_len=stock.decode_query_len,
                lora_capture_cases=stock.lora_capture_cases,
                varlen_decode=stock.varlen_decode,
                ubatch_runner=stock.ubatch_runner,
            )

    def gather_batch_req_state(self, scheduler_output: Any, dummy_run: bool) -> Any:
        state, uniform = super().gather_batch_req_state(scheduler_output, dummy_run)
        if state is None:
            nothing = np.zeros(0, dtype=np.int32)
            self.model_state.select((), nothing, nothing)
        else:
            done = self.req_states.num_computed_tokens_np[state.idx_mapping_np]
            self.model_state.select(state.idx_mapping_np.tolist(), done, state.num_scheduled_tokens)
        return state, uniform

    def sample(self, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
        return super().sample(hidden_states, self.model_state.sampling_batch(input_batch), grammar_output)


class SpanCUDAWorker(Worker):
    """vLLM's GPU worker with that runner."""

    def _make_model_runner(self) -> GPUModelRunner:
        if not self.use_v2_model_runner:
            raise UnsupportedError("model runner V1 on CUDA (unset VLLM_USE_V2_MODEL_RUNNER)")
        return SpanGPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> Any:
        warm_up(self.model_runner)
        return super().compile_or_warm_up_model()

    def minipic_memory(self) -> dict[str, int]:
        """Bytes of GPU memory: what spans need, and the KV cache; for benchmarks, by ``collective_rpc``."""
        turns = (getattr(m, TURN_ATTRIBUTE, None) for m in self.model_runner.model.modules())
        tables = {id(t): t.cos.nbytes + t.sin.nbytes for t in turns if t is not None}
        return {
            "spans": self.model_runner.model_state.nbytes + sum(tables.values()),
            "kv_cache": sum(c.nbytes for c in self.model_runner.kv_caches),
        }
