"""I9: what can't be served rightly is refused at start-up, by name; nothing is served wrongly."""

import json

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs

from invariants.engines import Engine
from minipic_server.refusals import UnsupportedError, check_config
from reference.checkpoints import COMMON, PLAIN_ROPE

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}
MODELS = {
    "sliding-window": ("MistralConfig", {**SMALL, "sliding_window": 64}, "sliding"),
    "window-in-some-layers": (
        "Qwen2Config",
        {**SMALL, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        "sliding",
    ),
    "soft-cap": ("Gemma2Config", {**SMALL, "sliding_window": None, "layer_types": ["full_attention"] * 2}, "soft"),
    "rope-per-layer": ("Gemma3TextConfig", {**SMALL, "sliding_window": 64}, "sliding"),
    "no-rope-in-some-layers": ("SmolLM3Config", {**SMALL, "no_rope_layers": [1, 0], "pad_token_id": 1}, "rotary"),
    "dynamic-ntk": (
        "LlamaConfig",
        {**SMALL, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "DynamicNTKScalingRotaryEmbedding",
    ),
    "alibi": ("BloomConfig", {"vocab_size": 512, "hidden_size": 64, "n_layer": 2, "n_head": 2}, "ALiBi|rotary"),
    "learned-positions": (
        "OPTConfig",
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "word_embed_proj_dim": 64,
            "max_position_embeddings": 2048,
        },
        "rotary",
    ),
    "sinks": (
        "GptOssConfig",
        {**SMALL, "head_dim": 64, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64},
        "sliding|sink",
    ),
    "latent-attention": (
        "DeepseekV2Config",
        {
            **SMALL,
            "kv_lora_rank": 32,
            "q_lora_rank": None,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
        },
        "MLA|latent",
    ),
}

NAMESAKE = "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector"  # a module that vLLM can import


def _offload(**extra):
    """vLLM's own offload to host memory, set up like this."""
    extra = {"cpu_bytes_to_use": 1 << 28, **extra}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {"kv_transfer_config": config}


OPTIONS = {
    "no-prefix-caching": ({"enable_prefix_caching": False}, "prefix caching"),
    "speculative-decoding": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
        "speculative",
    ),
    "prompt-embeddings": ({"enable_prompt_embeds": True}, "prompt embeddings"),
    "weak-hash": ({"prefix_caching_hash_algo": "xxhash"}, "sha256"),
    "kv-events": (
        {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}},
        "events",
    ),
    "offload-in-chunks": (_offload(blocks_per_chunk=2), "chunks of several blocks"),
    "offload-in-larger-blocks": (_offload(block_size=64), "chunks of several blocks"),
    "offload-elsewhere": (_offload(spec_name="TieringOffloadingSpec"), "host memory only"),
    "connector-of-one's-own-by-that-name": (
        {"kv_transfer_config": {**_offload()["kv_transfer_config"], "kv_connector_module_path": NAMESAKE}},
        "connector",
    ),
    "foreign-connector": (
        {
            "kv_transfer_config": {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": "/tmp/minipic-never-used"},
            }
        },
        "connector",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path, name):
    import transformers

    cls, options, reason = MODELS[name]
    config = getattr(transformers, cls)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"(?i)(MiniPIC: |layer '|attn).*({reason})"):
        Engine(tmp_path, max_model_len=512)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(checkpoint, name):
    options, reason = OPTIONS[name]
    with pytest.raises(ValueError, match=f"(?i)MiniPIC: .*({reason})"):
        Engine(checkpoint(), **options)


def test_what_only_gpus_can_do(checkpoint):
    config = EngineArgs(model=str(checkpoint()), skip_tokenizer_init=True, max_model_len=512).create_engine_config()
    check_config(config)
    config.model_config.enable_trace_replay = True
    with pytest.raises(UnsupportedError, match="trace replay"):
        check_config(config)


def test_a_refusal_says_what_to_do(checkpoint):
    with pytest.raises(ValueError, match="stock vLLM"):
        Engine(checkpoint(), enable_prefix_caching=False)


@pytest.mark.parametrize("option", ["worker_cls", "scheduler_cls"])
def test_options_that_the_plugin_sets_itself(checkpoint, option):
    with pytest.raises(ValueError, match=option):
        Engine(checkpoint(), **{option: "somebody.Else"})


def test_a_block_size_that_does_not_fit_is_refused(checkpoint):
    with pytest.raises(ValueError, match="block"):
        Engine(checkpoint(), block_size=24)


def test_the_models_served_in_other_tests_are_not_refused_by_accident():
    """Guards the table above: its shared settings describe a model that is served."""
    assert json.dumps(PLAIN_ROPE) and COMMON["head_dim"] == SMALL["head_dim"]
