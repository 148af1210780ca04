"""Low-rank adapters on a transformers model, written in peft's format, which vLLM serves."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional


class LoRALinear(nn.Module):
    """A frozen linear layer and the product of two thin matrices beside it."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.linear, self.scale, self.on = linear, alpha / rank, True
        device = linear.weight.device
        self.a = nn.Parameter(torch.empty(rank, linear.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        return out + functional.linear(functional.linear(x, self.a), self.b) * self.scale if self.on else out


class Adapter:
    """All of a model's adapters: every linear layer but the output's gets one, everything else is frozen."""

    def __init__(self, model: Any, rank: int, alpha: float) -> None:
        model.requires_grad_(False)
        self.rank, self.alpha = rank, alpha
        self.layers: dict[str, LoRALinear] = {}
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
                parent, _, last = name.rpartition(".")
                self.layers[name] = LoRALinear(module, rank, alpha)
                setattr(model.get_submodule(parent), last, self.layers[name])

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [p for layer in self.layers.values() for p in (layer.a, layer.b)]

    def switch(self, on: bool) -> None:
        """Off, the model is the one that it was."""
        for layer in self.layers.values():
            layer.on = on

    def save(self, directory: Path, base: str) -> None:
        """Write ``adapter_config.json`` and ``adapter_model.safetensors``; what was there stays until it is whole."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in self.layers.items():
            for part, matrix in (("A", layer.a), ("B", layer.b)):
                kept = matrix.detach().to("cpu", torch.bfloat16).contiguous()
                tensors[f"base_model.model.{name}.lora_{part}.weight"] = kept
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({name.rpartition(".")[2] for name in self.layers}),
            "inference_mode": True,
        }
        part = directory / "adapter_model.safetensors.part"
        save_file(tensors, part, metadata={"format": "pt"})
        part.replace(directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
