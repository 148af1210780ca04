"""The model shape, engine settings and prompts of the GPU benchmark: one definition for both engines."""

import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minipic_sdk.layout import ControlTokens
from minipic_sdk.layouts.base import Arrangement, Piece, PromptLayout, Rules

CONTROL = (128002, 128003, 128004)  # reserved ids of Llama 3: SSEP, PDEP, PAD
BLOCK = 16
GRAPHS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512]  # tokens of a step
HEAD, QUESTION, ANCHOR = 40, 32, 4  # tokens
LAYOUTS = {"1k": (10, 100), "8k": (4, 2000), "32k": (16, 2000)}  # documents, and their tokens, that layouts stand over
DOCUMENT = (80, 120)  # shortest, longest: a 2WikiMultihopQA document has about 100 tokens
LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 163840,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    layers: int = 32
    shrink: int = 1  # of the hidden size and the heads
    contexts: tuple[int, ...] = (8192, 32768, 131072)  # tokens of the documents of a prompt
    cold: tuple[int, ...] = (8192, 32768)
    batches: tuple[int, ...] = (1, 64, 256)
    decoded: int = 128  # tokens
    prefills: int = 48  # prompts of 2k to 4k tokens
    repeats: int = 5
    gpus: int = 1  # of a tensor-parallel engine

    @classmethod
    def small(cls) -> "Scale":
        """A dry run."""
        return cls(2, 8, (2048,), (2048,), (1, 8), 8, 2, 2)

    @classmethod
    def parallel(cls, gpus: int) -> "Scale":
        """What is worth knowing of several GPUs."""
        return cls(contexts=(8192, 32768), batches=(1, 64), repeats=3, gpus=gpus)


def model_directory(scale: Scale) -> str:
    """A directory with the config of a Llama-3-8B-shaped model; weights are made up by vLLM."""
    path = Path(tempfile.gettempdir()) / f"minipic-bench-{scale.layers}-{scale.shrink}"
    path.mkdir(exist_ok=True)
    smaller = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    shape = {k: LLAMA_3_8B[k] // scale.shrink for k in smaller}
    (path / "config.json").write_text(json.dumps({**LLAMA_3_8B, **shape, "num_hidden_layers": scale.layers}))
    return str(path)


def engine_options(scale: Scale) -> dict[str, Any]:
    """Arguments that both engines get."""
    return {
        "model": model_directory(scale),
        "block_size": BLOCK,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": 160_000,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 16384,
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "disable_log_stats": True,
        "tensor_parallel_size": scale.gpus,
        **(
            {"enforce_eager": True} if scale.shrink > 1 else {"compilation_config": {"cudagraph_capture_sizes": GRAPHS}}
        ),
    }


class Prompts:
    """Random token prompts: plain ones, and one collection of documents per context length."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        """Ordinary tokens."""
        return [self._random.randrange(1000, 127000) for _ in range(count)]

    def between(self, low: int, high: int) -> int:
        """A length."""
        return self._random.randrange(low, high + 1)

    def documents(self, total: int) -> list[list[int]]:
        """Documents of together about ``total`` tokens."""
        documents: list[list[int]] = []
        while (left := total - sum(map(len, documents))) > DOCUMENT[1]:
            documents.append(self.tokens(self.between(*DOCUMENT)))
        return [*documents, self.tokens(left)]

    def shuffled(self, documents: list[list[int]]) -> list[list[int]]:
        """A new order."""
        return self._random.sample(documents, len(documents))


def laid_out(layout: PromptLayout, head: list[int], documents: list[list[int]], question: list[int]) -> Arrangement:
    """The prompt that the SDK sends for this layout."""
    pieces = [Piece("text", head), *(Piece("span", d) for d in documents), Piece("text", question)]
    return layout(pieces, Rules(ControlTokens(*CONTROL), BLOCK, head[:ANCHOR]))


def plain(head: list[int], documents: list[list[int]], question: list[int]) -> list[int]:
    """What a server without spans gets."""
    return [*head, *(t for d in documents for t in d), *question]


def with_spans(head: list[int], documents: list[list[int]], question: list[int]) -> list[int]:
    """The same as spans: each document behind SSEP, padded to whole blocks; the question behind PDEP."""
    ssep, pdep, pad = CONTROL
    ids = list(head)
    for mark, part in [*((ssep, d) for d in documents), (pdep, question)]:
        ids += [pad] * (-len(ids) % BLOCK)
        ids.append(mark)
        ids += part
    return ids
