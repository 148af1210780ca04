"""Every patch of vLLM internals, and nothing else: `tests/server/test_upstream_compatibility.py` pins what they rely on.

A patch wraps the original and leaves requests that did not opt in to it alone. What a subclass or a registered hook
can do is done there instead (scheduler, workers, attention backends, HTTP routes).
"""

from typing import Any

from minipic_server.config import SpanConfig
from minipic_server.hashing import SpanHasher
from minipic_server.responses import with_visible_prompts
from minipic_server.state import opted_in
from minipic_server.validation import body_refusal, check_request, spans_in

_MARK = "_minipic_patched"


def _replace(owner: Any, name: str, replacement: Any) -> None:
    """Set ``owner.name`` once: vLLM loads plugins several times in a process."""
    setattr(replacement, _MARK, True)
    if hasattr(owner, name):  # not None for a new method: inspect.signature follows it
        replacement.__wrapped__ = getattr(owner, name)
    setattr(owner, name, replacement)


def _patched(owner: Any, name: str) -> bool:
    return getattr(getattr(owner, name), _MARK, False)


def apply() -> None:
    """Patch this process; idempotent."""
    from vllm.v1.engine import core

    if _patched(core, "get_request_block_hasher"):
        return
    _hash_spans(core)
    _answer_questions(core)
    _check_requests()
    _hide_physical_prompts()
    _plan_on_gpu()


def _hash_spans(core: Any) -> None:
    """EngineCore builds its block hasher by a name imported into its module; ours wraps it.

    It loads plugins inside its own constructor, hence the detour over the next method that sees the configuration.
    """
    stock, initialize = core.get_request_block_hasher, core.EngineCore._initialize_kv_caches
    current: list[SpanConfig | None] = [None]

    def initialize_kv_caches(self: Any, vllm_config: Any) -> Any:
        current[0] = SpanConfig.of(vllm_config)
        return initialize(self, vllm_config)

    def get_hasher(block_size: int, hash_fn: Any) -> Any:
        plain = stock(block_size, hash_fn)
        return plain if current[0] is None else SpanHasher(current[0], hash_fn, plain)

    _replace(core.EngineCore, "_initialize_kv_caches", initialize_kv_caches)
    _replace(core, "get_request_block_hasher", get_hasher)


def _answer_questions(core: Any) -> None:
    """Utility methods are dispatched by name on EngineCore; the scheduler knows the answers."""

    def minipic(self: Any, operation: str, payload: Any) -> Any:
        return self.scheduler.minipic(operation, payload)

    _replace(core.EngineCore, "minipic", minipic)


def _check_requests() -> None:
    """All front ends, HTTP and offline, pass ``InputProcessor.process_inputs``; a ValueError there is a 400."""
    from vllm.v1.engine.input_processor import InputProcessor

    process = InputProcessor.process_inputs

    def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, request_id, prompt, params, *args, **kwargs)
        if opted_in(request.sampling_params) is not None:
            check_request(self.vllm_config, request, prompt)
        return request

    _replace(InputProcessor, "process_inputs", process_inputs)


def _hide_physical_prompts() -> None:
    """The generating routes return prompts as they were sent; span requests get visible ids, or are refused."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    for owner, name in (
        (OpenAIServingCompletion, "create_completion"),
        (OpenAIServingChat, "create_chat_completion"),
        (ServingTokens, "serve_tokens"),
    ):
        _replace(owner, name, _guarded(getattr(owner, name)))


def _guarded(serve: Any) -> Any:
    async def guarded(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if refused := body_refusal(request):
            return self.create_error_response(refused)
        response = await serve(self, request, *args, **kwargs)
        config = SpanConfig.of(self.engine_client.vllm_config) if spans_in(request) else None
        return response if config is None else with_visible_prompts(config, request, response)

    return guarded


def _plan_on_gpu() -> None:
    """Model runner V2 asks this function for the class that prepares a model's attention metadata."""
    from vllm.v1.worker.gpu import model_states

    resolve = model_states.resolve_model_state_cls

    def resolve_model_state_cls(vllm_config: Any, model: Any) -> Any:
        if SpanConfig.of(vllm_config) is None:
            return resolve(vllm_config, model)
        from minipic_server.gpu.model_state import span_model_state_cls

        return span_model_state_cls(resolve(vllm_config, model))

    _replace(model_states, "resolve_model_state_cls", resolve_model_state_cls)
