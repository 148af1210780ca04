"""A second reference that shares nothing with the first: a float64 Llama forward, attention written token by token.

Every (query, key) pair has its own two positions, as ``PromptSpec`` spells them out; nothing is cached or turned.
"""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from reference.prompts import PromptSpec

Array = np.ndarray


class NaiveReference:
    """Llama, Qwen3, Mistral and Granite in float64."""

    def __init__(self, path: str | Path) -> None:
        self.config = json.loads((Path(path) / "config.json").read_text())
        self.weights = {k: v.astype(np.float64) for k, v in load_file(Path(path) / "model.safetensors").items()}
        self.inv_freq = _frequencies(self.config)

    def logits(self, spec: PromptSpec, continuation: tuple[int, ...] | list[int] = ()) -> Array:
        """Logits behind the prompt and behind each token of ``continuation``. [1 + continuation, vocab]"""
        c, w = self.config, self.weights
        spec = spec.extended(list(continuation))
        sees, key_at, query_at = spec.sees(), spec.key_positions(), spec.query_positions()
        residual = c.get("residual_multiplier", 1.0)
        x = w["model.embed_tokens.weight"][[t.id for t in spec.tokens()]] * c.get("embedding_multiplier", 1.0)
        for i in range(c["num_hidden_layers"]):
            name = f"model.layers.{i}."
            normed = self._norm(x, name + "input_layernorm")
            x = x + residual * self._attention(normed, name + "self_attn.", sees, key_at, query_at)
            y = self._norm(x, name + "post_attention_layernorm")
            gate = y @ w[name + "mlp.gate_proj.weight"].T
            up = y @ w[name + "mlp.up_proj.weight"].T
            x = x + residual * ((gate / (1 + np.exp(-gate)) * up) @ w[name + "mlp.down_proj.weight"].T)
        x = self._norm(x[-1 - len(continuation) :], "model.norm")
        out = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        return x @ out.T / c.get("logits_scaling", 1.0)

    def _norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.weights[name + ".weight"]

    def _attention(self, x: Array, name: str, sees: Array, key_at: Array, query_at: Array) -> Array:
        c, w = self.config, self.weights
        size, groups = c["head_dim"], c["num_attention_heads"] // c["num_key_value_heads"]
        q, k, v = (
            (x @ w[f"{name}{p}_proj.weight"].T).reshape(len(x), -1, size) for p in "qkv"
        )  # each [tokens, heads, size]
        if name + "q_norm.weight" in w:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        k, v = k.repeat(groups, axis=1), v.repeat(groups, axis=1)
        scale = c.get("attention_multiplier", size**-0.5)
        out = np.zeros_like(q)
        for t in range(len(x)):
            (seen,) = np.nonzero(sees[t])
            query = self._rotate(q[t : t + 1], query_at[t : t + 1])
            keys = self._rotate(k[seen], key_at[t, seen])
            score = np.einsum("hd,jhd->hj", query[0], keys) * scale
            weight = np.exp(score - score.max(-1, keepdims=True))
            out[t] = np.einsum("hj,jhd->hd", weight / weight.sum(-1, keepdims=True), v[seen])
        return out.reshape(len(x), -1) @ w[name + "o_proj.weight"].T

    def _rotate(self, x: Array, at: Array) -> Array:
        angle = at[:, None, None] * self.inv_freq  # [tokens, 1, size / 2]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), axis=-1)


def _frequencies(config: dict) -> Array:
    rope = config["rope_parameters"]
    inverse = rope["rope_theta"] ** (-np.arange(0, config["head_dim"], 2) / config["head_dim"])
    if rope["rope_type"] == "default":
        return inverse
    assert rope["rope_type"] == "llama3"
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = length * inverse / (2 * math.pi)  # rotations over the original context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return inverse * (smooth + (1 - smooth) / rope["factor"])
