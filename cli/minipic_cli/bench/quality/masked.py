"""Any composed prompt on a plain transformers model, masks and positions written out: answers without an engine.

What the engine caches is forwarded once and kept (a span behind its anchor, the head), then every dependent segment
runs over what it sees, each key turned to the place that it has in the prompt. The engine is tested to give the same
(tests/invariants, tests/layouts); here one gets all logits, which an engine doesn't hand out.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from minipic_sdk import Prompt
from minipic_sdk.layout import Layout, Segment

KeyValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer: keys and values, each [batch, kv heads, tokens, head]."""

REMEMBERED: Final = 48_000  # tokens of spans and heads whose KV is kept: 2.2 GB for a 135M model


class Answer(NamedTuple):
    """What the model says to one prompt."""

    logprobs: torch.Tensor  # of each token of the wanted answer, behind what comes before it. [wanted, vocab]
    agreed: int  # leading tokens of the wanted answer that greedy decoding writes too
    state: "State | None"  # where it goes another way; None if it doesn't


class State(NamedTuple):
    """A prompt that the model has read."""

    kv: KeyValues  # what the next token sees, batch 1
    position: int  # of the next token
    token: int  # the next token, greedily


class MaskedModel:
    """A causal model with rotary positions under the masks of any layout."""

    def __init__(self, directory: Path | str, *, device: str = "cpu") -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
        self.model = loaded.to(device).eval()
        self.device = device
        self._kept: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], KeyValues] = OrderedDict()
        self._kept_tokens = 0

    @torch.no_grad()
    def answer(self, prompt: Prompt, begun: Sequence[int], wanted: Sequence[int]) -> Answer:
        """Read ``prompt`` and the beginning of its answer, and score ``wanted`` (token ids, not empty) behind that."""
        profile, ids = prompt.profile, prompt.token_ids
        layout = prompt.meta.parse(ids, control=profile.control_tokens, block_size=profile.block_size)
        anchor = tuple(prompt.meta.anchor)
        cached: dict[Segment, KeyValues] = {}  # shown keys at their logical places
        last = layout.segments[-1]
        for i, segment in enumerate(layout.segments[:-1]):
            mine = tuple(ids[segment.visible_start : segment.visible_stop])
            if not mine:
                continue
            if segment.kind == "span":
                kv = self._turn(self._read(anchor, mine), segment.logical - layout.anchor)
            elif segment.kind == "head":
                kv = self._read((), mine)
            else:
                kv = self._forward(mine, segment.logical, self._seen(layout, i, cached), 1)[1]
            cached[segment] = _cut(kv, segment.hidden)
        tail = [*ids[last.visible_start : last.visible_stop], *begun]
        seen = self._seen(layout, len(layout.segments) - 1, cached)
        logits, kv = self._forward([*tail, *wanted[:-1]], last.logical, seen, len(wanted))
        likely = logits.argmax(-1).tolist()
        agreed = next((i for i, (a, b) in enumerate(zip(likely, wanted, strict=True)) if a != b), len(wanted))
        state = None
        if agreed < len(wanted):
            read = len(tail) + agreed
            mine = [(k[:, :, :read], v[:, :, :read]) for k, v in kv]
            state = State(_join([seen, mine] if seen else [mine]), last.logical + read, likely[agreed])
        return Answer(logits.double().log_softmax(-1), agreed, state)

    @torch.no_grad()
    def generate(self, states: Sequence[State], limit: int, stop: Sequence[int] = ()) -> list[list[int]]:
        """Continue all of ``states`` greedily by at most ``limit`` tokens each, up to a stop token (left out)."""
        out: list[list[int]] = [[] for _ in states]
        tokens = [s.token for s in states]
        lengths = [s.kv[0][0].shape[2] for s in states]
        longest = max(lengths)
        cache = DynamicCache(_stack([s.kv for s in states], longest))
        hidden = torch.finfo(torch.float32).min
        mask = torch.zeros(len(states), 1, 1, longest, device=self.device)
        for row, length in enumerate(lengths):
            mask[row, :, :, : longest - length] = hidden
        done = [False] * len(states)
        for step in range(limit):
            for row, token in enumerate(tokens):
                done[row] |= token in stop
                if not done[row]:
                    out[row].append(token)
            if all(done) or step == limit - 1:
                break
            mask = torch.cat((mask, torch.zeros_like(mask[..., :1])), -1)
            positions = torch.tensor([[s.position + step] for s in states], device=self.device)
            logits = self.model(
                torch.tensor(tokens, device=self.device)[:, None],
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
            tokens = logits[:, -1].argmax(-1).tolist()
        return out

    def _read(self, anchor: tuple[int, ...], ids: tuple[int, ...]) -> KeyValues:
        """KV of ``ids`` right behind ``anchor``; what comes back often is kept."""
        key = (anchor, ids)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        kv = _cut(self._forward(anchor + ids, 0, [], 1)[1], len(anchor))
        self._kept[key] = kv
        self._kept_tokens += len(ids)
        while self._kept_tokens > REMEMBERED and len(self._kept) > 1:
            (_, gone), _ = self._kept.popitem(last=False)
            self._kept_tokens -= len(gone)
        return kv

    def _seen(self, layout: Layout, index: int, cached: dict[Segment, KeyValues]) -> KeyValues:
        return _join([cached[s] for s in layout.context(index) if s in cached])

    def _forward(self, ids: Sequence[int], first: int, past: KeyValues, wanted: int) -> tuple[torch.Tensor, KeyValues]:
        """Logits of the last ``wanted`` tokens and KV of all ``ids``, which see ``past`` and one another causally."""
        old, new = past[0][0].shape[2] if past else 0, len(ids)
        mask = torch.zeros(1, 1, new, old + new, device=self.device)
        future = torch.ones(new, new, dtype=torch.bool, device=self.device).triu(1)
        mask[0, 0, :, old:].masked_fill_(future, torch.finfo(torch.float32).min)
        out = self.model(
            torch.tensor([list(ids)], device=self.device),
            attention_mask=mask,
            position_ids=torch.arange(first, first + new, device=self.device)[None],
            past_key_values=DynamicCache(past) if past else DynamicCache(),
            use_cache=True,
            logits_to_keep=wanted,
        )
        grown = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        return out.logits[0], _cut(grown, old)

    def _turn(self, kv: KeyValues, by: int) -> KeyValues:
        """Rotate keys ``by`` positions further with the model's own rotary frequencies."""
        if not by:
            return kv
        rotary = self.model.model.rotary_emb
        cos, sin = rotary(kv[0][0], torch.tensor([[by]], device=self.device))  # each [1, 1, rotated dims]
        cos, sin = cos / rotary.attention_scaling, sin / rotary.attention_scaling
        return [(_rotated(k, cos, sin), v) for k, v in kv]


def _rotated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    low, high = keys[..., : width // 2], keys[..., width // 2 : width]
    turned = keys[..., :width] * cos + torch.cat((-high, low), -1) * sin
    return torch.cat((turned, keys[..., width:]), -1)


def _cut(kv: KeyValues, first: int) -> KeyValues:
    return [(k[:, :, first:], v[:, :, first:]) for k, v in kv] if first else kv


def _join(parts: list[KeyValues]) -> KeyValues:
    if len(parts) < 2:
        return parts[0] if parts else []
    layers = range(len(parts[0]))
    return [(torch.cat([p[i][0] for p in parts], 2), torch.cat([p[i][1] for p in parts], 2)) for i in layers]


def _stack(rows: list[KeyValues], longest: int) -> KeyValues:
    """One batch, padded on the left. Per layer: [rows, kv heads, longest, head]."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 0, longest - x.shape[2], 0))

    layers = range(len(rows[0]))
    return [(torch.cat([padded(r[i][0]) for r in rows]), torch.cat([padded(r[i][1]) for r in rows])) for i in layers]
