"""From a GGUF file of a Llama model to a Hugging Face directory: config, weights, tokenizer, chat template."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minipic_cli.models import weights_file
from minipic_cli.models.gguf import GGUFError, GGUFFile

_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SPECIAL = 3  # token type of control tokens


def convert(gguf: GGUFFile, target: Path, on_tensor: Callable[[], None] = lambda: None) -> None:
    """Write the model's files into the existing directory ``target``.

    Args:
        gguf: an open file of a Llama model with tied embeddings and the smollm pre-tokenizer.
        target: directory to write into.
        on_tensor: called after each tensor, for a progress bar.

    Raises:
        GGUFError: the file holds another kind of model.
    """
    meta = gguf.metadata
    kind = (meta.get("general.architecture"), meta.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm") or "output.weight" in gguf.tensors:
        raise GGUFError("only Llama models with tied embeddings and SmolLM's tokenizer can be converted")
    _write_json(target / "config.json", config(meta))
    _write_json(target / "generation_config.json", generation_config(meta))
    _write_json(target / "tokenizer.json", tokenizer(meta))
    _write_json(target / "tokenizer_config.json", tokenizer_config(meta))
    _write_json(target / "special_tokens_map.json", special_tokens(meta))
    names = {name: hugging_face_name(name) for name in gguf.tensors}
    shapes = {hf: gguf.tensors[name].shape for name, hf in names.items()}

    def weights() -> Iterator[tuple[str, np.ndarray]]:
        for name, hf in names.items():
            yield hf, weight(gguf, name)
            on_tensor()

    # bfloat16, the type the model was released in: its rounding (2^-9) is far below that of the 4-bit weights, a
    # fp32 run and a bf16 run then share one set of weights, and start-up reads 270 MB rather than 540.
    weights_file.write(target / "model.safetensors", shapes, weights())


def hugging_face_name(name: str) -> str:
    """GGUF tensor name to Hugging Face's. Raises GGUFError."""
    if name in _TOP:
        return _TOP[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.weight"
    raise GGUFError(f"unexpected tensor {name!r}")


def weight(gguf: GGUFFile, name: str) -> np.ndarray:
    """A tensor's values as Hugging Face wants them, float32."""
    values = gguf.load(name)
    meta = gguf.metadata
    if ".attn_q." in name:
        return unpermute(values, meta["llama.attention.head_count"])
    if ".attn_k." in name:
        return unpermute(values, meta["llama.attention.head_count_kv"])
    return values


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of rows. values: [heads * head, hidden].

    llama.cpp rotates neighbouring rows of a head (0, 1), (2, 3), ...; Hugging Face rotates row i with row
    i + head / 2. The rows of the first halves are the even ones there.
    """
    head = values.shape[0] // heads
    return values.reshape(heads, head // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def config(meta: dict[str, Any]) -> dict[str, Any]:
    """config.json."""
    heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        # Stored as float32, which turns 1e-05 into 9.99...e-06.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_scaling": None,
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": meta["llama.vocab_size"],
    }


def generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json."""
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def special_tokens(meta: dict[str, Any]) -> dict[str, str]:
    """special_tokens_map.json."""
    tokens = meta["tokenizer.ggml.tokens"]
    keys = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {f"{ours}_token": tokens[meta[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in keys.items()}


def tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json."""
    return {
        # Not GPT2Tokenizer: transformers would build that one itself and lose the split of digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "add_bos_token": meta["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": meta["tokenizer.ggml.add_space_prefix"],
        "clean_up_tokenization_spaces": False,
        **special_tokens(meta),
        "chat_template": meta["tokenizer.chat_template"],
    }


def tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json: every digit a piece of its own, then byte-level BPE."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    # ASCII only, so that the bytes, and their hash, are the same everywhere.
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="ascii")
