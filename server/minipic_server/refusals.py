"""Refusing, at start-up and by name, what spans were not tested with (I9): a wrong cache is worse than none."""

from typing import TYPE_CHECKING

from torch import nn

from minipic_server.rope import attach_turn_tables

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class UnsupportedError(ValueError):
    """This model or option can't be served with spans; the message says which and what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"MiniPIC: {what}; serve it with stock vLLM instead (the SDK then sends plain prompts)")


def check_config(config: "VllmConfig") -> None:
    """Refuse server options; raises UnsupportedError."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    cuda_only_parallel = parallel.tensor_parallel_size > 1 and config.device_config.device_type != "cuda"
    offload = config.kv_transfer_config
    tuned = offload.kv_connector_extra_config if offload is not None else {}
    refused = {
        "multi-head latent attention (MLA) has another key layout": model.use_mla,
        "M-RoPE positions are not supported": model.uses_mrope,
        "multimodal models are not supported": model.is_multimodal_model,
        "encoder-decoder models are not supported": model.is_encoder_decoder,
        "pooling models are not supported": model.runner_type == "pooling",
        "state-space and hybrid models are not supported": model.is_hybrid or model.is_attention_free,
        "sliding-window attention is not supported": bool(model.get_sliding_window()),
        "prompt embeddings are not supported": model.enable_prompt_embeds,
        # Forced tokens pass by the mask that keeps control tokens from being generated.
        "trace replay is not supported": model.enable_trace_replay,
        "speculative decoding is not tested with spans": config.speculative_config is not None,
        "context parallelism is not supported": parallel.decode_context_parallel_size > 1
        or parallel.prefill_context_parallel_size > 1,
        "data parallelism inside one server is not supported": parallel.data_parallel_size > 1,
        "pipeline parallelism is not tested with spans": parallel.pipeline_parallel_size > 1,
        "tensor parallelism is not tested with spans on this platform": cuda_only_parallel,
        "micro-batch overlap (DBO) is not supported": parallel.enable_dbo,
        "KV-sharing fast prefill is not supported": cache.kv_sharing_fast_prefill,
        "KV cache events are not split at span boundaries yet": bool(
            config.kv_events_config and config.kv_events_config.enable_kv_cache_events
        ),
        "foreign KV connectors are not tested with spans": offload is not None
        and (offload.kv_connector != "OffloadingConnector" or bool(offload.kv_connector_module_path)),
        "KV offload is tested with host memory only": tuned.get("spec_name", "CPUOffloadingSpec")
        != "CPUOffloadingSpec",
        # A chunk is keyed by its last block's hash, which covers nothing before its own span.
        "KV offload in chunks of several blocks is not supported": tuned.get("blocks_per_chunk", 1) != 1
        or tuned.get("block_size", cache.block_size) != cache.block_size,
        f"KV cache dtype {cache.cache_dtype!r} is not tested with spans": cache.cache_dtype
        not in ("auto", "bfloat16", "float16"),
        # Last: vLLM switches it off for some of the models above, and they are the reason then.
        f"prefix hash {cache.prefix_caching_hash_algo!r} isn't sha256": not cache.prefix_caching_hash_algo.startswith(
            "sha256"
        ),
        "prefix caching is off": not cache.enable_prefix_caching,
    }
    for what, wrong in refused.items():
        if wrong:
            raise UnsupportedError(what)


def check_model(model: nn.Module, config: "VllmConfig", impl: type) -> None:
    """Refuse a loaded model's layers, then give every attention layer its turn table (I10: all or nothing).

    Args:
        model: as loaded by the worker.
        config: the engine's configuration.
        impl: attention implementation that every layer must have.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        own = getattr(layer, "impl", None)
        if not isinstance(own, impl):
            raise UnsupportedError(f"layer {name!r} uses {type(own or layer).__name__}, not MiniPIC's attention")
        window = getattr(layer, "sliding_window", None)
        features = {
            "a sliding window": window not in (None, -1, (-1, -1)),
            "ALiBi": getattr(own, "alibi_slopes", None) is not None,
            "a logits soft cap": bool(getattr(own, "logits_soft_cap", None)),
            "attention sinks": getattr(own, "sinks", None) is not None,
            "a KV cache shared between layers": getattr(own, "kv_sharing_target_layer_name", None) is not None,
            "non-decoder attention": getattr(layer, "attn_type", "decoder") != "decoder",
        }
        for feature, present in features.items():
            if present:
                raise UnsupportedError(f"layer {name!r} has {feature}")
    attach_turn_tables(model, positions=config.model_config.max_model_len)
