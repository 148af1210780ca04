"""Random tiny checkpoints whose output really depends on attention: default initialisation hides wrong masks."""

from pathlib import Path
from typing import Any

import torch

VOCAB = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_hidden_layers": 2, "rope_parameters": PLAIN_ROPE}),
    "llama3": ("LlamaConfig", {"num_hidden_layers": 3, "head_dim": 64, "rope_parameters": LLAMA3_ROPE}),
    "qwen3": ("Qwen3Config", {"num_hidden_layers": 2, "head_dim": 64, "rope_parameters": PLAIN_ROPE}),
    "mistral": ("MistralConfig", {"num_hidden_layers": 2, "sliding_window": None, "rope_parameters": PLAIN_ROPE}),
    "granite": (
        "GraniteConfig",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "rope_parameters": PLAIN_ROPE,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.25,
            "logits_scaling": 1.5,
        },
    ),
}


def make_checkpoint(directory: Path, family: str, seed: int = 0, **overrides: Any) -> Path:
    """A Hugging Face model directory with seeded random weights; nothing is written twice."""
    path = directory / f"{family}-{seed}{''.join(f'-{k}={v}' for k, v in sorted(overrides.items()))}"
    if (path / "model.safetensors").exists():
        return path
    import transformers

    config_class, extra = FAMILIES[family]
    config = getattr(transformers, config_class)(**{**COMMON, **extra, **overrides})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _fill(name, weight)
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    _write_tokenizer(path)
    return path


def _write_tokenizer(path: Path) -> None:
    """Bytes as tokens (ids from 2), fillers, and control tokens last: enough for text, stop strings and grammars."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<f{i}>" for i in range(len(names), VOCAB - 3)] + ["<|ssep|>", "<|pdep|>", "<|pad|>"]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (*names[:2], *names[-3:])])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(path)


def _fill(name: str, weight: torch.Tensor) -> None:
    if weight.dim() == 1:
        weight.copy_(1 + 0.1 * torch.randn_like(weight) if "norm" in name else 0.1 * torch.randn_like(weight))
        return
    # Wide queries and keys give peaked attention, a wide head peaked outputs: a wrong key set can't stay unseen.
    gain = 1.6 if "q_proj" in name or "k_proj" in name else 3.0 if "lm_head" in name else 1.0
    fan_in = 1 if "embed" in name else weight.shape[1]
    weight.copy_(torch.randn_like(weight) * gain / fan_in**0.5)
