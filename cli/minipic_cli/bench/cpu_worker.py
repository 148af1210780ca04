"""One engine of the CPU benchmark, in a process of its own: ``python -m minipic_cli.bench.cpu_worker stock|minipic``.

Reads a request per line on stdin, ``{"do": name, ...}``, and answers with one JSON line, so that the driver can
interleave the two engines and compare them under the same machine load.
"""

import json
import os
import random
import statistics
import sys
import time
from itertools import count, islice
from typing import Any, Final, NamedTuple

from minipic_cli.scoring import Gold, Probe, Said, score

DOCUMENTS: Final = 8
DOCUMENT_TOKENS: Final = 250
QUESTION_TOKENS: Final = 24
PLAIN_TOKENS: Final = 1024


class Timed(NamedTuple):
    """How long something took."""

    seconds: float
    cpu_seconds: float  # of all threads


class Worker:
    """An in-process vLLM engine and the measured operations."""

    def __init__(self, kind: str, model: str, block_size: int, eager: bool) -> None:
        from vllm import LLM

        from minipic_sdk.profile import ModelProfile

        self.spans = kind == "minipic"
        self.profile = ModelProfile.from_directory(model, block_size=block_size)
        options: dict[str, Any] = {
            "model": model,
            "dtype": "float32",
            "block_size": block_size,
            "max_model_len": min(8192, self.profile.max_model_len),
            "max_num_seqs": 32,
            "enable_prefix_caching": True,
            "enforce_eager": eager,
            "disable_log_stats": True,
        }
        if self.spans:
            from minipic_server import engine_kwargs

            self.llm = LLM(**engine_kwargs(options.pop("model"), **options))
        else:
            assert "MINIPIC" not in os.environ, "the baseline must be stock vLLM"
            self.llm = LLM(**options)
            scheduler = type(self.llm.llm_engine.engine_core.engine_core.scheduler)  # type: ignore[attr-defined]
            assert scheduler.__module__.startswith("vllm."), f"the baseline runs {scheduler}"
        self.random = random.Random(1)
        self.numbers = count()
        self.vocabulary = min(40_000, self.llm.llm_engine.model_config.get_vocab_size())
        self.head = [*self.profile.anchor_token_ids, *self.tokens(30)]
        self.documents = [self.tokens(DOCUMENT_TOKENS) for _ in range(DOCUMENTS)]
        self.contexts: dict[int, list[list[int]]] = {}
        self.run([self.tokens(64)], 4)

    def tokens(self, count: int) -> list[int]:
        """Random ordinary token ids."""
        ids = iter(lambda: self.random.randrange(100, self.vocabulary), None)
        return list(islice((t for t in ids if t not in self.profile.control_tokens), count))

    def prompt(self) -> list[int]:
        """Head, documents in their present order, a new question: with spans if this engine has them."""
        question = self.tokens(QUESTION_TOKENS)
        if not self.spans:
            return [*self.head, *(t for d in self.documents for t in d), *question]
        control, size = self.profile.control_tokens, self.profile.block_size
        ids: list[int] = []
        for first, piece in ((None, self.head), *((control.ssep, d) for d in self.documents)):
            ids += ([] if first is None else [first]) + piece
            ids += [control.pad] * (-len(ids) % size)
        return [*ids, control.pdep, *question]

    def run(self, prompts: list[list[int]], new: int) -> tuple[Timed, list[Any]]:
        """Generate ``new`` tokens for each prompt; times and outputs."""
        from vllm import SamplingParams

        from minipic_sdk.protocol import XARGS_KEY, RequestMeta

        # Prompts without control tokens are plain requests and must not opt in.
        spans = self.spans and any(self.profile.control_tokens.pdep in p for p in prompts)
        meta = {XARGS_KEY: RequestMeta(anchor=self.profile.anchor_token_ids).to_json()} if spans else None
        params = SamplingParams(temperature=0, max_tokens=new, detokenize=False, ignore_eos=True, extra_args=meta)
        asked: list[Any] = [{"prompt_token_ids": p} for p in prompts]
        begin, begin_cpu = time.perf_counter(), time.process_time()
        outputs = self.llm.generate(asked, params, use_tqdm=False)
        return Timed(time.perf_counter() - begin, time.process_time() - begin_cpu), outputs

    def prefill(self) -> dict[str, float]:
        """A plain prompt that nothing has seen."""
        return self.run([self.tokens(PLAIN_TOKENS)], 1)[0]._asdict()

    def decode(self, batch: int, steps: int = 24) -> dict[str, float]:
        """A decode step of plain requests behind 1k of cached context: the median of ``steps``."""
        from vllm import SamplingParams

        if batch not in self.contexts:
            self.contexts[batch] = [self.tokens(PLAIN_TOKENS) for _ in range(batch)]
            self.run(self.contexts[batch], 1)  # prefills them
        params = SamplingParams(temperature=0, max_tokens=steps + 8, detokenize=False, ignore_eos=True)
        engine = self.llm.llm_engine
        names = [f"decode-{next(self.numbers)}" for _ in range(batch)]
        for name, context in zip(names, self.contexts[batch], strict=True):
            asked: Any = {"prompt_token_ids": context}
            engine.add_request(name, asked, params)
        decoding: set[str] = set()
        while len(decoding) < batch:  # prefill of what a hit leaves, at most a block each
            decoding |= {out.request_id for out in engine.step()}
        taken: list[Timed] = []
        for _ in range(steps):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            engine.step()
            taken.append(Timed(time.perf_counter() - begin, time.process_time() - begin_cpu))
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()
        return Timed(*(statistics.median(column) for column in zip(*taken, strict=True)))._asdict()

    def same_order(self) -> dict[str, float]:
        """First token of a new question over the documents in the order that is cached."""
        timed, outputs = self.run([self.prompt()], 1)
        return {**timed._asdict(), "cached": outputs[0].num_cached_tokens}

    def new_order(self) -> dict[str, float]:
        """First token of a new question over the documents in an order never seen."""
        self.random.shuffle(self.documents)
        return self.same_order()

    def greedy(self, prompt: list[int]) -> dict[str, Any]:
        """Twelve greedy tokens."""
        return {"tokens": list(self.run([prompt], 12)[1][0].outputs[0].token_ids)}

    def score(self, golds: list[Any], meta: dict[str, str]) -> dict[str, Any]:
        """Log probabilities of gold answers, ``[prompt's token ids, answer's token ids]`` each (see scoring.py)."""
        from vllm import SamplingParams

        def complete(probes: list[Probe]) -> list[list[Said]]:
            params = [SamplingParams(detokenize=False, extra_args=meta or None, **p.params()) for p in probes]
            asked: list[Any] = [{"prompt_token_ids": p.token_ids} for p in probes]
            said = [out.outputs[0] for out in self.llm.generate(asked, params, use_tqdm=False)]
            return [
                [
                    Said(t, {k: v.logprob for k, v in (row or {}).items()})
                    for t, row in zip(o.token_ids, o.logprobs or (), strict=True)
                ]
                for o in said
            ]

        return {"logprobs": score([Gold(*pair) for pair in golds], complete)}

    def forget(self) -> dict[str, Any]:
        """Empty the prefix cache."""
        return {"done": self.llm.reset_prefix_cache()}


def main() -> None:
    """Serve operations until stdin ends."""
    kind, model, block_size, eager = sys.argv[1:5]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout too; answers have it for themselves
    worker = Worker(kind, model, int(block_size), eager == "eager")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("do"))(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
