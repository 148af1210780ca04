"""The CPU worker (model runner V1): hands attention its step plan and the model its canonical positions."""

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig
from minipic_server.cpu.backend import SpanCPUAttention, SpanCPUMetadataBuilder
from minipic_server.plan import RequestPlan, StepPlan
from minipic_server.refusals import check_config, check_model
from minipic_server.scheduler import REARRANGED
from minipic_server.state import opted_in

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

_PLAN = "minipic_plan"


class SpanCPUModelRunner(CPUModelRunner):
    """Plans every step that has a span request in its batch; adds no state to its base class."""

    def _update_states(self, scheduler_output: Any) -> Any:
        # Model runner V1 keeps the prompt that a preempted request began with; ours may have been arranged anew.
        for request_id, meta in getattr(scheduler_output, REARRANGED, {}).items():
            request = self.requests[request_id]
            tokens = scheduler_output.scheduled_cached_reqs.all_token_ids[request_id]
            request.prompt_token_ids = tokens[: request.num_prompt_tokens]
            params = copy(request.sampling_params)
            assert params is not None
            params.extra_args = {**(params.extra_args or {}), XARGS_KEY: meta}
            request.sampling_params = params
            setattr(request, _PLAN, False)
        return super()._update_states(scheduler_output)

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: np.ndarray) -> Any:
        result = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        plans = [self._plan_of(self.requests[request_id]) for request_id in self.input_batch.req_ids]
        count = len(plans)
        self._set_step(
            StepPlan.build(plans, self.input_batch.num_computed_tokens_cpu[:count], num_scheduled_tokens[:count])
        )
        return result

    def _model_forward(self, input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any) -> Any:
        step = next((b.step for b in self._builders()), None)
        if step is not None and positions is not None:
            canonical = positions.clone()
            canonical[: len(step.positions)] = torch.from_numpy(step.positions)
            positions = canonical
        try:
            return super()._model_forward(input_ids, positions, *args, **kwargs)
        finally:
            self._set_step(None)

    def _set_step(self, step: StepPlan | None) -> None:
        for builder in self._builders():
            builder.step = step

    def _builders(self) -> list[SpanCPUMetadataBuilder]:
        builders = [group.get_metadata_builder() for groups in self.attn_groups for group in groups]
        return [b for b in builders if isinstance(b, SpanCPUMetadataBuilder)]

    def _plan_of(self, request: "CachedRequestState") -> RequestPlan | None:
        plan: Any = getattr(request, _PLAN, False)
        if plan is False:
            plan = None
            text = opted_in(request.sampling_params)
            config = SpanConfig.of(self.vllm_config)
            if text is not None and config is not None and request.prompt_token_ids is not None:
                layout = RequestMeta.from_json(text).parse(
                    request.prompt_token_ids, control=config.control, block_size=config.block_size
                )
                plan = RequestPlan.from_layout(layout) if layout.has_control else None
            setattr(request, _PLAN, plan)
        return plan


class SpanCPUWorker(CPUWorker):
    """Selected with ``--worker-cls``."""

    def init_device(self) -> None:
        check_config(self.vllm_config)
        super().init_device()
        if type(self.model_runner) is not CPUModelRunner:
            raise ValueError("MiniPIC on CPU needs vLLM's model runner V1 (unset VLLM_USE_V2_MODEL_RUNNER)")
        # The base class names its runner's class in the middle of this method; ours only overrides methods.
        self.model_runner.__class__ = SpanCPUModelRunner

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        check_model(self.model_runner.get_model(), self.vllm_config, SpanCPUAttention)
