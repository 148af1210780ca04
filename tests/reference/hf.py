"""The reference of I3 on plain Hugging Face transformers: masks and positions written out, no product code.

Each span is forwarded right behind the anchor, its keys are turned to its place in the prompt, then every dependent
piece runs over what it sees (a DynamicCache put together by hand), and the tokens generated so far behind it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from reference.prompts import Control, Piece, PromptSpec

KeyValues = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: [1, kv heads, tokens, head]


class HFReference:
    """Logits of a declared prompt, computed with an unmodified transformers model."""

    def __init__(self, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
        self._spans: dict[tuple[tuple[int, ...], tuple[int, ...]], KeyValues] = {}

    @torch.no_grad()
    def logits(self, spec: PromptSpec, continuation: Sequence[int] = ()) -> torch.Tensor:
        """Logits behind the prompt and behind each token of ``continuation``. [1 + continuation, vocab]"""
        spec = spec.extended(list(continuation))
        anchor = spec.pieces[0].tokens[: spec.anchor]
        cached: list[tuple[int, Piece, KeyValues]] = []  # logical place of the first shown token, piece, shown KV
        logits = None
        for piece, place in zip(spec.pieces, spec.starts(), strict=True):
            if not piece.tokens:
                continue
            if piece.kind == "span":
                mine = self._turn(self._span(anchor, piece.tokens), place - spec.anchor)
            elif piece.kind == "head":
                logits, mine = self._forward(piece.tokens, 0, [])
            else:
                before = sorted((c for c in cached if c[0] < place), key=lambda c: c[0])
                logits, mine = self._forward(piece.tokens, place, _join([kv for _, _, kv in before]))
            if piece.hidden < len(piece.tokens):
                cached.append((place + piece.hidden, piece, _cut(mine, piece.hidden)))
        assert logits is not None, "a prompt that generates has a head or a dependent piece"
        return logits[-1 - len(continuation) :]

    def logprobs(self, spec: PromptSpec, continuation: Sequence[int] = ()) -> torch.Tensor:
        """Log-softmax of ``logits`` in float64."""
        return self.logits(spec, continuation).double().log_softmax(-1)

    def greedy(self, spec: PromptSpec, tokens: int, banned: Control | None = None) -> list[int]:
        """Greedy continuation; control tokens are never sampled in a span request (I6)."""
        out: list[int] = []
        for _ in range(tokens):
            row = self.logits(spec, out)[-1].clone()
            if banned is not None:
                row[list(banned)] = float("-inf")
            out.append(int(row.argmax()))
        return out

    def _span(self, anchor: tuple[int, ...], tokens: tuple[int, ...]) -> KeyValues:
        key = (anchor, tokens)
        if key not in self._spans:
            self._spans[key] = _cut(self._forward(anchor + tokens, 0, [])[1], len(anchor))
        return self._spans[key]

    def _forward(self, tokens: Sequence[int], first: int, past: KeyValues) -> tuple[torch.Tensor, KeyValues]:
        """Logits [tokens, vocab] and the tokens' own KV; they see all of ``past`` and one another causally."""
        old = past[0][0].shape[2] if past else 0
        new = len(tokens)
        mask = torch.zeros(1, 1, new, old + new, dtype=self.model.dtype)
        future = torch.ones(new, new, dtype=torch.bool).triu(1)
        mask[0, 0, :, old:].masked_fill_(future, torch.finfo(mask.dtype).min)
        cache = DynamicCache(past) if past else DynamicCache()
        out = self.model(
            torch.tensor([list(tokens)]),
            attention_mask=mask,
            position_ids=torch.arange(first, first + new)[None],
            past_key_values=cache,
            use_cache=True,
        )
        grown = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        return out.logits[0], _cut(grown, old)

    def _turn(self, kv: KeyValues, by: int) -> KeyValues:
        """Rotate keys ``by`` positions further, with the model's own rotary module."""
        rotary = self.model.model.rotary_emb
        cos, sin = rotary(kv[0][0].double(), torch.tensor([[by]]))
        cos, sin = cos / rotary.attention_scaling, sin / rotary.attention_scaling  # [1, 1, rotated dims]
        return [(_rotate(k, cos, sin), v) for k, v in kv]


def _rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    x = keys[..., :width].double()
    half = torch.cat((-x[..., width // 2 :], x[..., : width // 2]), dim=-1)
    return torch.cat(((x * cos + half * sin).to(keys.dtype), keys[..., width:]), dim=-1)


def _cut(kv: KeyValues, first: int) -> KeyValues:
    return [(k[:, :, first:], v[:, :, first:]) for k, v in kv]


def _join(parts: list[KeyValues]) -> KeyValues:
    if not parts:
        return []
    return [
        (torch.cat([p[i][0] for p in parts], 2), torch.cat([p[i][1] for p in parts], 2)) for i in range(len(parts[0]))
    ]
