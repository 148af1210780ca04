"""Writes small GGUF files for tests, from the format's description: no code is shared with the reader."""

import struct
from pathlib import Path

import numpy as np

F32, Q4_1, Q8_0 = 0, 3, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(value) -> bytes:
    """Type and bytes of a metadata value."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case list():
            kind = struct.unpack("<I", entry(value[0])[:4])[0]
            return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(entry(item)[4:] for item in value)
    raise TypeError(value)


def write_gguf(path: Path, metadata: dict, tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> None:
    """tensors: name to (shape, rows first; GGML type; bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + entry(value) for key, value in metadata.items())
    body = b""
    for name, (shape, kind, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(body))
        body += data
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in llama.cpp's order: a head's halves row by row in turn."""
    head = len(values) // heads
    rows = []
    for h in range(heads):
        for i in range(head // 2):
            rows += [h * head + i, h * head + i + head // 2]
    return values[rows]


# Two layers, two query heads and one KV head of 4, hidden 8, a vocabulary of 3 special tokens and the bytes.
def tiny_metadata() -> dict:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["\u0120", "\u010a"]
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(special) + len(letters) + 1,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*special, *letters, "at"],
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * (len(letters) + 1),
        "tokenizer.ggml.merges": ["a t"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def tiny_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """By Hugging Face name, float32, representable in bfloat16."""
    random = np.random.default_rng(seed)
    meta = tiny_metadata()
    hidden, inner, vocab = 8, 12, meta["llama.vocab_size"]
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    for i in range(2):
        shapes |= {
            f"model.layers.{i}.input_layernorm": (hidden,),
            f"model.layers.{i}.self_attn.q_proj": (hidden, hidden),
            f"model.layers.{i}.self_attn.k_proj": (4, hidden),
            f"model.layers.{i}.self_attn.v_proj": (4, hidden),
            f"model.layers.{i}.self_attn.o_proj": (hidden, hidden),
            f"model.layers.{i}.post_attention_layernorm": (hidden,),
            f"model.layers.{i}.mlp.gate_proj": (inner, hidden),
            f"model.layers.{i}.mlp.up_proj": (inner, hidden),
            f"model.layers.{i}.mlp.down_proj": (hidden, inner),
        }
    return {f"{k}.weight": (random.integers(-64, 64, s) / 64).astype(np.float32) for k, s in shapes.items()}


def write_tiny_model(path: Path, **changes) -> None:
    """A whole model; ``changes`` replace metadata (dots as double underscores), None drops a key."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {}
    for name, values in tiny_weights().items():
        if "q_proj" in name or "k_proj" in name:
            values = interleave(values, 2 if "q_proj" in name else 1)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        tensors[name.replace("model.layers.", "blk.")] = (values.shape, F32, values.tobytes())
    metadata = tiny_metadata() | {key.replace("__", "."): value for key, value in changes.items()}
    write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, tensors)
