"""Any composed prompt on a plain transformers model, masks and positions written out: answers without an engine.

What the engine caches is forwarded once and kept (a span behind its anchor, the head), then every dependent segment
runs over what it sees, each key turned to the place that it has in the prompt. The engine is tested to give the same
(tests/invariants, tests/layouts); here one gets all logits, which an engine doesn't hand out. Many prompts are read at
once: a small model on a GPU takes as long for thirty of them as for one.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from minipic_sdk import Prompt
from minipic_sdk.layout import Layout, Segment

REMEMBERED: Final = 48_000  # tokens of spans and heads whose KV is kept: 2.2 GB for a 135M model
ROOM: Final = 16_384  # tokens of one batch, padding and what they see included


class KeyValues(NamedTuple):
    """Of some tokens, in the order in which they are seen."""

    keys: torch.Tensor  # [layers, kv heads, tokens, head]
    values: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens."""
        return self.keys.shape[2]

    def part(self, first: int, stop: int | None = None) -> "KeyValues":
        """A view of some of the tokens."""
        return KeyValues(self.keys[:, :, first:stop], self.values[:, :, first:stop])


class Ask(NamedTuple):
    """A prompt and what shall be scored behind it, in token ids."""

    prompt: Prompt
    begun: Sequence[int]  # the answer's beginning, given
    wanted: Sequence[int]  # how it should go on; not empty


class Answer(NamedTuple):
    """What the model says to one prompt."""

    logprobs: torch.Tensor  # of each token of the wanted answer, behind what comes before it. [wanted, vocab]
    agreed: int  # leading tokens of the wanted answer that greedy decoding writes too
    state: "State | None"  # where it goes another way; None if it doesn't


class State(NamedTuple):
    """A prompt that the model has read."""

    kv: KeyValues  # what the next token sees
    position: int  # of the next token
    token: int  # the next token, greedily


class _Row(NamedTuple):
    """Tokens to forward: they see ``past`` and one another causally."""

    ids: Sequence[int]
    first: int  # position of the first one
    past: KeyValues | None = None
    wanted: int = 1  # tokens at the end whose logits are wanted

    @property
    def tokens(self) -> int:
        return len(self.ids) + (self.past.length if self.past else 0)


class MaskedModel:
    """A causal model with rotary positions under the masks of any layout.

    Args:
        directory: of the model.
        device: of torch.
        adapter: directory of a LoRA adapter in peft's format, added to the weights.
    """

    def __init__(self, directory: Path | str, *, device: str = "cpu", adapter: Path | str | None = None) -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
        if adapter is not None:
            _add(loaded, Path(adapter))
        self.model = loaded.to(device).eval()
        self.device = device
        self._kept: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], KeyValues] = OrderedDict()
        self._kept_tokens = 0

    def answer(self, prompt: Prompt, begun: Sequence[int], wanted: Sequence[int]) -> Answer:
        """See ``Ask``."""
        return self.answers([Ask(prompt, begun, wanted)])[0]

    @torch.no_grad()
    def answers(self, asked: Sequence[Ask]) -> list[Answer]:
        """Read every prompt and the beginning of its answer, and score what is wanted behind that."""
        layouts = [
            a.prompt.meta.parse(
                a.prompt.token_ids, control=a.prompt.profile.control_tokens, block_size=a.prompt.profile.block_size
            )
            for a in asked
        ]
        seen = self._cached(asked, layouts)
        # A dependent segment may see the one before it, so all prompts take this step together, then the next one.
        steps = [[i for i, s in enumerate(x.segments[:-1]) if s.kind == "dependent" and s.num_visible] for x in layouts]
        for step in range(max(map(len, steps))):
            now = [(n, indices[step]) for n, indices in enumerate(steps) if step < len(indices)]
            rows: list[_Row] = []
            for n, i in now:
                segment = layouts[n].segments[i]
                rows.append(_Row(_ids(asked[n], segment), segment.logical, _context(layouts[n], i, seen[n])))
            for (n, i), (_, kv) in zip(now, self._forward(rows), strict=True):
                segment = layouts[n].segments[i]
                seen[n][segment] = kv.part(segment.hidden)
        rows = []
        for ask, layout, mine in zip(asked, layouts, seen, strict=True):
            ids = (*_ids(ask, layout.segments[-1]), *ask.begun, *ask.wanted[:-1])
            past = _context(layout, len(layout.segments) - 1, mine)
            rows.append(_Row(ids, layout.segments[-1].logical, past, len(ask.wanted)))
        read = self._forward(rows)
        return [_answer(a, row, logits, kv) for a, row, (logits, kv) in zip(asked, rows, read, strict=True)]

    @torch.no_grad()
    def generate(self, states: Sequence[State], limits: Sequence[int], stop: Sequence[int] = ()) -> list[list[int]]:
        """Continue each state greedily by at most as many tokens as its limit, up to a stop token (left out)."""
        out: list[list[int]] = [[] for _ in states]
        tokens = [s.token for s in states]
        longest = max(s.kv.length for s in states)
        cache = DynamicCache(_stack([s.kv for s in states], longest))
        mask = torch.zeros(len(states), 1, 1, longest)
        for row, state in enumerate(states):
            mask[row, :, :, : longest - state.kv.length] = torch.finfo(torch.float32).min
        mask = mask.to(self.device)
        done = [False] * len(states)
        for step in range(max(limits)):
            for row, token in enumerate(tokens):
                done[row] |= token in stop or step >= limits[row]
                if not done[row]:
                    out[row].append(token)
            if all(done) or step == max(limits) - 1:
                break
            mask = torch.cat((mask, torch.zeros_like(mask[..., :1])), -1)
            logits = self.model(
                torch.tensor(tokens, device=self.device)[:, None],
                attention_mask=mask,
                position_ids=torch.tensor([[s.position + step] for s in states], device=self.device),
                past_key_values=cache,
                use_cache=True,
            ).logits
            tokens = logits[:, -1].argmax(-1).tolist()
        return out

    def _cached(self, asked: Sequence[Ask], layouts: Sequence[Layout]) -> list[dict[Segment, KeyValues]]:
        """For each prompt the shown keys of its spans and its head, at their logical places."""
        places: list[tuple[int, Segment, tuple[tuple[int, ...], tuple[int, ...]]]] = []
        for n, (ask, layout) in enumerate(zip(asked, layouts, strict=True)):
            for segment in layout.segments[:-1]:
                if segment.kind != "dependent" and segment.num_visible:
                    anchor = ask.prompt.meta.anchor if segment.kind == "span" else ()
                    places.append((n, segment, (tuple(anchor), _ids(ask, segment))))
        keys = list(dict.fromkeys(key for _, _, key in places))
        missing = [key for key in keys if key not in self._kept]
        known = {key: self._kept[key] for key in keys if key in self._kept}
        read = self._forward([_Row(anchor + ids, 0) for anchor, ids in missing])
        for (anchor, ids), (_, kv) in zip(missing, read, strict=True):
            mine = kv.part(len(anchor))
            # A copy: the view would keep the whole batch alive.
            known[anchor, ids] = KeyValues(mine.keys.clone(), mine.values.clone())
        self._keep(known)
        out: list[dict[Segment, KeyValues]] = [{} for _ in asked]
        for n, segment, key in places:
            by = segment.logical - len(key[0])
            out[n][segment] = (self._turn(known[key], by) if segment.kind == "span" else known[key]).part(
                segment.hidden
            )
        return out

    def _keep(self, known: dict[tuple[tuple[int, ...], tuple[int, ...]], KeyValues]) -> None:
        for key, kv in known.items():
            self._kept_tokens += kv.length if key not in self._kept else 0
            self._kept[key] = kv
            self._kept.move_to_end(key)
        while self._kept_tokens > REMEMBERED and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_tokens -= gone.length

    def _forward(self, rows: Sequence[_Row]) -> list[tuple[torch.Tensor, KeyValues]]:
        """For each row the logits that it wants and the KV of its own tokens, which share memory with other rows'."""
        out: dict[int, tuple[torch.Tensor, KeyValues]] = {}
        for batch in _batches(rows):
            logits, keys, values = self._forward_padded([rows[i] for i in batch])
            for at, i in enumerate(batch):
                mine = KeyValues(keys[:, at], values[:, at]).part(keys.shape[3] - len(rows[i].ids))
                out[i] = logits[at, logits.shape[1] - rows[i].wanted :], mine
        return [out[i] for i in range(len(rows))]

    def _forward_padded(self, rows: Sequence[_Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Past and new tokens, each padded on the left: logits, keys and values of the new tokens."""
        new, old = max(len(r.ids) for r in rows), max(r.past.length if r.past else 0 for r in rows)
        ids, positions = (torch.zeros(len(rows), new, dtype=torch.long) for _ in range(2))
        hidden = torch.ones(len(rows), 1, new, old + new, dtype=torch.bool)
        for i, row in enumerate(rows):
            start = new - len(row.ids)
            ids[i, start:] = torch.tensor(row.ids)
            positions[i, start:] = torch.arange(row.first, row.first + len(row.ids))
            hidden[i, :, :, old - (row.past.length if row.past else 0) : old] = False
            hidden[i, :, :, old + start :] = False
        hidden[..., old:] |= torch.ones(new, new, dtype=torch.bool).triu(1)
        # Padding sees everything, as little of it as there is: a row that sees nothing would be NaN.
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, torch.finfo(torch.float32).min)
        out = self.model(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=DynamicCache(_stack([r.past for r in rows], old)) if old else DynamicCache(),
            use_cache=True,
            logits_to_keep=max(r.wanted for r in rows),
        )
        layers = out.past_key_values.layers
        keys, values = (torch.stack([getattr(x, n)[:, :, old:] for x in layers]) for n in ("keys", "values"))
        return out.logits, keys, values

    def _turn(self, kv: KeyValues, by: int) -> KeyValues:
        """Rotate keys ``by`` positions further with the model's own rotary frequencies."""
        if not by:
            return kv
        rotary = self.model.model.rotary_emb
        cos, sin = rotary(kv.keys, torch.tensor([[by]], device=self.device))  # each [1, 1, rotated dims]
        cos, sin = cos / rotary.attention_scaling, sin / rotary.attention_scaling
        return KeyValues(_rotated(kv.keys, cos, sin), kv.values)


def _answer(ask: Ask, row: _Row, logits: torch.Tensor, kv: KeyValues) -> Answer:
    likely = logits.argmax(-1).tolist()
    pairs = zip(likely, ask.wanted, strict=True)
    agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), len(likely))
    state = None
    if agreed < len(likely):
        read = len(row.ids) - len(likely) + 1 + agreed
        mine = kv.part(0, read)
        state = State(_join([row.past, mine] if row.past else [mine]), row.first + read, likely[agreed])
    return Answer(logits.double().log_softmax(-1), agreed, state)


def _add(model: Any, adapter: Path) -> None:
    """Add a LoRA adapter's matrices to the weights that they are for."""
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    ends = ".lora_A.weight", ".lora_B.weight"
    for name in [n.removesuffix(ends[0]) for n in tensors if n.endswith(ends[0])]:
        weight = model.get_submodule(name.removeprefix("base_model.model.")).weight
        a, b = (tensors.pop(name + end).to(weight) for end in ends)
        weight.data += scale * (b @ a)
    if tensors:
        raise ValueError(f"{adapter} holds what is no LoRA of a linear layer: {min(tensors)}")


def _ids(ask: Ask, segment: Segment) -> tuple[int, ...]:
    return tuple(ask.prompt.token_ids[segment.visible_start : segment.visible_stop])


def _context(layout: Layout, index: int, seen: dict[Segment, KeyValues]) -> KeyValues | None:
    parts = [seen[s] for s in layout.context(index) if s in seen]
    return _join(parts) if parts else None


def _batches(rows: Sequence[_Row]) -> Iterator[list[int]]:
    """Indices of rows to forward together: about as long, or a CPU computes padding, and not too many."""
    batch: list[int] = []
    longest = 0
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i].ids)):
        longest = max(longest, rows[i].tokens)
        if batch and (4 * len(rows[i].ids) < 3 * len(rows[batch[0]].ids) or (len(batch) + 1) * longest > ROOM):
            yield batch
            batch, longest = [], rows[i].tokens
        batch.append(i)
    if batch:
        yield batch


def _rotated(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    low, high = keys[..., : width // 2], keys[..., width // 2 : width]
    turned = keys[..., :width] * cos + torch.cat((-high, low), -1) * sin
    return torch.cat((turned, keys[..., width:]), -1)


def _join(parts: Sequence[KeyValues]) -> KeyValues:
    if len(parts) == 1:
        return parts[0]
    return KeyValues(torch.cat([p.keys for p in parts], 2), torch.cat([p.values for p in parts], 2))


def _stack(rows: Sequence[KeyValues | None], longest: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One batch, padded on the left. Per layer: keys and values, each [rows, kv heads, longest, head]."""
    both: list[torch.Tensor] = []
    for which in range(2):
        tensors = {i: row[which] for i, row in enumerate(rows) if row is not None}
        one = next(iter(tensors.values()))
        out = one.new_zeros(one.shape[0], len(rows), one.shape[1], longest, one.shape[3])
        for i, x in tensors.items():
            out[:, i, :, longest - x.shape[2] :] = x
        both.append(out)
    return list(zip(*both, strict=True))
