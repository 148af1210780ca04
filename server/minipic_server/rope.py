# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Rotary tables that turn a query (or a key) by a number of positions, one per attention layer.

ADR 1: a query looks at a span used elsewhere through ``R[pi(t) - d] q = R[-d] (R[pi(t)] q)``, so attention needs the
rotation of *its own* layer. The model rotates with tables in the model's dtype; turning uses float32 angles computed
in float64 and unit magnitude (YaRN's attention factor is already in the query and must not be applied twice).
Shared by the CPU and the GPU backend.
"""

from dataclasses import dataclass

import torch
from torch import nn

TURN_ATTRIBUTE = "minipic_turn"  # set on every attention layer

# Class names, exactly: a subclass may rotate by other rules.
_PLAIN = {"RotaryEmbedding", "Llama3RotaryEmbedding", "NTKScalingRotaryEmbedding"}
_ALLOWED = _PLAIN | {"LinearScalingRotaryEmbedding", "YaRNScalingRotaryEmbedding"}
_TOLERANCE = 2e-2  # of a table entry: what bfloat16 rounding and float32 angles at 1e5 positions leave


class UnsupportedRotaryError(ValueError):
    """An attention layer whose queries can't be turned; the message names the layer and the reason."""

    def __init__(self, layer: str, reason: str) -> None:
        self.layer = layer
        self.reason = reason
        super().__init__(f"layer {layer!r}: {reason}")


@dataclass(frozen=True, slots=True)
class TurnTable:
    """cos and sin of every turn a request can need."""

    cos: torch.Tensor  # [positions, rotary_dim // 2] float32
    sin: torch.Tensor  # likewise
    neox: bool  # pairs are (i, i + rotary_dim / 2) if true, else (2i, 2i + 1)

    @classmethod
    def from_frequencies(cls, frequencies: torch.Tensor, *, positions: int, neox: bool) -> "TurnTable":
        """Build from radians per position. frequencies: [rotary_dim // 2]."""
        where = torch.arange(positions, dtype=torch.float64, device=frequencies.device)
        angles = torch.outer(where, frequencies.double())
        return cls(angles.cos().float().contiguous(), angles.sin().float().contiguous(), neox)

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that rotate; the rest passes."""
        return 2 * self.cos.shape[1]

    def turn(self, x: torch.Tensor, turns: torch.Tensor | int, *, sign: int) -> torch.Tensor:
        """``R[sign * turns] x`` in x's dtype, computed in float32; the readable reference of every kernel.

        Args:
            x: queries or keys. [tokens, heads, head_size]
            turns: one per token, or one for all; not negative. [tokens]
            sign: -1 turns a query back, +1 turns a key forth.
        """
        at = torch.as_tensor(turns, device=self.cos.device).expand(x.shape[0])
        cos, sin = self.cos[at].unsqueeze(1), sign * self.sin[at].unsqueeze(1)
        rotating, passing = x[..., : self.rotary_dim].float(), x[..., self.rotary_dim :]
        if self.neox:
            a, b = rotating.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        else:
            a, b = rotating[..., ::2], rotating[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        return torch.cat((turned.to(x.dtype), passing), dim=-1)


def attach_turn_tables(model: nn.Module, *, positions: int) -> dict[str, TurnTable]:
    """Pair every attention layer with its sibling rotary module; sets ``layer.minipic_turn``.

    Args:
        model: a loaded vLLM model.
        positions: turns to tabulate, ``max_model_len``: no logical position of a request may reach it.

    Returns:
        The table of each attention layer by name; layers that share a rotary module share the table.

    Raises:
        UnsupportedRotaryError: names the first layer that can't be served.
    """
    from vllm.model_executor.layers.attention import Attention

    shared: dict[int, TurnTable] = {}
    tables: dict[str, TurnTable] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, Attention):
            continue
        rotary = _sibling(model, name)
        if id(rotary) not in shared:
            shared[id(rotary)] = turn_table(rotary, positions=positions, layer=name)
        table = tables[name] = shared[id(rotary)]
        if table.rotary_dim > layer.head_size:
            raise UnsupportedRotaryError(name, f"rotary_dim {table.rotary_dim} exceeds head_size {layer.head_size}")
        setattr(layer, TURN_ATTRIBUTE, table)
    if not tables:
        raise UnsupportedRotaryError("*", "the model has no attention layer of a kind MiniPIC knows")
    return tables


def turn_table(rotary: nn.Module, *, positions: int, layer: str = "?") -> TurnTable:
    """The turn table of one vLLM rotary module, checked against the table the model itself rotates with."""
    kind = type(rotary).__name__
    if kind not in _ALLOWED:
        raise UnsupportedRotaryError(layer, f"rotary embedding {kind} isn't supported with spans")
    own = rotary.cos_sin_cache
    with torch.device(own.device):
        frequencies, magnitude = _frequencies(rotary, layer)
    if own.dim() != 2 or own.shape[1] != 2 * len(frequencies):
        raise UnsupportedRotaryError(layer, f"rotary table of shape {tuple(own.shape)} isn't one of 1-D positions")
    if positions > own.shape[0]:
        raise UnsupportedRotaryError(layer, f"{positions} positions asked for, its rotary table has {own.shape[0]}")
    table = TurnTable.from_frequencies(frequencies, positions=positions, neox=rotary.is_neox_style)
    sample = torch.linspace(0, positions - 1, min(positions, 64), device=own.device).long()
    ours = magnitude * torch.cat((table.cos[sample], table.sin[sample]), dim=1)
    if (gap := (own[sample].float() - ours).abs().max().item()) > _TOLERANCE * max(1.0, magnitude):
        raise UnsupportedRotaryError(layer, f"{kind} rotates by other angles than expected (off by {gap:.3f})")
    return table


def _frequencies(rotary: nn.Module, layer: str) -> tuple[torch.Tensor, float]:
    """Radians per position [rotary_dim // 2] and the magnitude the model's own table is scaled by."""
    kind = type(rotary).__name__
    if kind == "YaRNScalingRotaryEmbedding":
        return rotary._compute_inv_freq(rotary.scaling_factor), rotary.mscale
    frequencies = rotary._compute_inv_freq(rotary.base)
    if kind == "LinearScalingRotaryEmbedding":
        if len(rotary.scaling_factors) != 1:
            raise UnsupportedRotaryError(layer, "several linear scaling factors in one rotary module")
        return frequencies / rotary.scaling_factors[0], 1.0
    return frequencies, 1.0


def _sibling(model: nn.Module, name: str) -> nn.Module:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    parent = model.get_submodule(name.rpartition(".")[0])
    found = {id(m): m for m in parent.children() if isinstance(m, RotaryEmbeddingBase)}
    if len(found) != 1:
        beside = [type(m).__name__ for m in found.values()] or "none"
        raise UnsupportedRotaryError(name, f"needs exactly one rotary embedding beside it, found {beside}")
    return next(iter(found.values()))
