"""Teach a model to answer from documents that don't see one another, by a LoRA adapter.

    python examples/finetune_block_attention/train.py MODEL build/block.npz build/adapter --device cuda --seconds 180

The teacher is the model itself under full attention. The student reads the same tokens at the same positions under the
masks of layout="block" with nothing in front of a document, and learns the teacher's distribution at every token of an
answer (KL) and the answer itself (cross-entropy). The questions of a group share its documents and don't see one
another, so a document is read once for all of them. Ctrl-C ends early and keeps what was learned.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lora import Adapter
from torch.nn import functional
from transformers import AutoModelForCausalLM

QUESTION = 64  # segments of a group are numbered: from here on they are questions
TELL, KEEP = 5.0, 30.0  # seconds between two lines of progress, between two checkpoints


class Batch(NamedTuple):
    """Groups, padded at the end. [rows, tokens]"""

    ids: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor  # number of the token's segment: head 0, documents, questions from QUESTION; padding 127
    asked: torch.Tensor  # whether the next token is one of an answer

    def masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Who sees whom, for the teacher and for the student. [rows, 1, tokens, tokens]"""
        mine, others = self.segments[:, None, :, None], self.segments[:, None, None, :]
        width = self.ids.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.ids.device).tril()
        shared, same = others < QUESTION, mine == others
        return causal & (same | shared), causal & (same | (shared & (mine >= QUESTION)))


class Groups:
    """The training set."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as data:
            self._tokens, self._starts, self._golds = data["tokens"], data["starts"], data["golds"]
            self._groups, self._group_starts = data["groups"], data["group_starts"]
            self.held_out = self.validated = int(data["held_out"])
        self.count = len(self._group_starts) - 1
        lengths = np.diff(self._starts)
        self.lengths = [int(lengths[self._of(i)].sum()) for i in range(self.count)]

    def batches(self, tokens: int, seed: int, *, held_out: bool = False) -> Iterator[Batch]:
        """Batches of up to ``tokens`` tokens with padding; without end, or once groups that were held out."""
        source = np.random.default_rng(seed)
        while True:
            order = np.arange(self.validated) if held_out else source.permutation(np.arange(self.held_out, self.count))
            batches: list[list[int]] = []
            for pool in np.array_split(order, max(1, len(order) // 512)):
                batch: list[int] = []
                for i in sorted(pool, key=lambda i: self.lengths[i]):
                    if batch and (len(batch) + 1) * self.lengths[i] > tokens:
                        batches.append(batch)
                        batch = []
                    batch.append(i)
                batches.append(batch)
            for i in range(len(batches)) if held_out else source.permutation(len(batches)):
                yield self._batch(batches[i])
            if held_out:
                return

    def _of(self, group: int) -> np.ndarray:
        return self._groups[self._group_starts[group] : self._group_starts[group + 1]]

    def _batch(self, groups: list[int]) -> Batch:
        width = -(-max(self.lengths[i] for i in groups) // 64) * 64  # few shapes, and the kernels like it
        ids, positions = (np.zeros((len(groups), width), np.int64) for _ in range(2))
        segments, asked = np.full((len(groups), width), 127, np.int8), np.zeros((len(groups), width), bool)
        for row, group in enumerate(groups):
            at = position = 0
            for number, segment in enumerate(self._of(group)):
                first, stop = self._starts[segment : segment + 2]
                end, gold = at + stop - first, self._golds[segment]
                ids[row, at:end] = self._tokens[first:stop]
                positions[row, at:end] = np.arange(position, position + stop - first)
                segments[row, at:end] = number + QUESTION if gold else number
                asked[row, end - 1 - gold : end - 1] = True
                if not gold:
                    position += stop - first
                at = end
        return Batch(*(torch.from_numpy(x) for x in (ids, positions, segments, asked)))


class Trainer:
    """A model with its adapter."""

    def __init__(self, directory: Path, device: str, rank: int, gold: float) -> None:
        on_gpu = device.startswith("cuda")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.bfloat16 if on_gpu else torch.float32, attn_implementation="sdpa"
        )
        self.model, self.device, self.gold = loaded.to(device), device, gold
        self.adapter = Adapter(self.model, rank, 2 * rank)
        self._mixed = torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=on_gpu)

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean KL from full attention, and mean cross-entropy, of the answers' tokens under block attention."""
        batch = Batch(*(x.to(self.device, non_blocking=True) for x in batch))
        full, block = batch.masks()
        where = batch.asked.flatten().nonzero().squeeze(1)
        wanted = batch.ids.flatten()[where + 1]
        with torch.no_grad():
            self.adapter.switch(False)
            teacher = self._logprobs(batch, full, where)
            self.adapter.switch(True)
        student = self._logprobs(batch, block, where)
        kl = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
        return kl, functional.nll_loss(student, wanted)

    def validate(self, groups: Groups, tokens: int) -> tuple[float, float]:
        """The same over the groups held out."""
        with torch.no_grad():
            found = [torch.stack(self.losses(batch)) for batch in groups.batches(tokens, 0, held_out=True)]
        kl, gold = torch.stack(found).mean(0).tolist()
        return kl, gold

    def _logprobs(self, batch: Batch, mask: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """At the chosen places of the flattened batch; the output layer is a fifth of the work, so only there."""
        with self._mixed:
            out = self.model.model(batch.ids, attention_mask=mask, position_ids=batch.positions, use_cache=False)
            logits = self.model.lm_head(out.last_hidden_state.flatten(0, 1)[where])
        return functional.log_softmax(logits.float(), -1)


def train(trainer: Trainer, groups: Groups, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train until steps or seconds are over, or Ctrl-C; the adapter in ``out`` is the last state of all."""
    base = options.model.name
    before = trainer.validate(groups, options.tokens)
    print(f"before: KL {before[0]:.3f}, answer {before[1]:.3f} nats per token", flush=True)
    parameters = trainer.adapter.parameters
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, betas=(0.9, 0.98), weight_decay=0.01)
    begun = told = kept = time.monotonic()
    done = tokens = 0
    total = torch.zeros(2, device=trainer.device)  # of losses since the last line; reading it waits for the GPU
    since = 0
    try:
        for done, batch in enumerate(groups.batches(options.tokens, options.seed), 1):
            progress = max(done / options.steps, (time.monotonic() - begun) / options.seconds)
            rate = options.lr * min(1.0, done / options.warmup) * max(0.02, 1 - progress)
            for group in optimizer.param_groups:
                group["lr"] = rate
            kl, gold = trainer.losses(batch)
            (kl + options.gold * gold).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += torch.stack((kl, gold)).detach()
            tokens, since, now = tokens + int((batch.segments != 127).sum()), since + 1, time.monotonic()
            if now - told > TELL or progress >= 1:
                kl, gold = (total / since).tolist()
                speed = tokens / (time.monotonic() - begun)
                print(f"step {done}, {speed:,.0f} tokens/s: KL {kl:.3f}, answer {gold:.3f}", flush=True)
                told, since = now, 0
                total.zero_()
            if now - kept > KEEP:
                trainer.adapter.save(out, base)
                kept = now
            if progress >= 1:
                break
    except KeyboardInterrupt:
        print("interrupted: keeping what was learned", flush=True)
    seconds = time.monotonic() - begun
    trainer.adapter.save(out, base)
    after = trainer.validate(groups, options.tokens)
    print(f"after: KL {after[0]:.3f}, answer {after[1]:.3f} nats per token; {out}", flush=True)
    names = "kl", "answer"
    return {
        "steps": done,
        "seconds": round(seconds, 1),
        "tokens": tokens,
        "before": dict(zip(names, before, strict=True)),
        "after": dict(zip(names, after, strict=True)),
        **{n: getattr(options, n) for n in ("rank", "lr", "gold", "seed")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="model directory")
    parser.add_argument("data", type=Path, help="what prepare.py wrote")
    parser.add_argument("out", type=Path, help="directory of the adapter")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=1_000_000, help="at most")
    parser.add_argument("--seconds", type=float, default=180.0, help="at most, from the first step on")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a batch, padding included")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=30, help="steps")
    parser.add_argument("--validate", type=int, default=128, help="groups, before and after")
    parser.add_argument("--gold", type=float, default=0.2, help="weight of cross-entropy beside KL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit ends it like Ctrl-C
    torch.manual_seed(options.seed)
    trainer = Trainer(options.model, options.device, options.rank, options.gold)
    groups = Groups(options.data)
    groups.validated = min(options.validate, groups.held_out)
    result = train(trainer, groups, options.out, options)
    (options.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
