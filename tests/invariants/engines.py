"""A span engine in this process, and what a test asks it for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reference.prompts import Control, PromptSpec

CONTROL = Control()


def gpu_share() -> dict[str, Any]:
    """Little of a GPU, and no profiling of it, so that several engines can run beside each other."""
    import torch

    return {"gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": 4 << 30} if torch.cuda.is_available() else {}


@dataclass(frozen=True)
class Ask:
    """One request: a declared prompt for a span engine, or plain token ids."""

    prompt: PromptSpec | list[int]
    tokens: int = 6  # to generate
    salt: str | None = None
    meta: str | None = None  # overrides what the spec says
    params: dict[str, Any] = field(default_factory=dict)
    lora: Any = None
    priority: int = 0  # lower goes first, in engines that look at it

    def engine_input(self) -> tuple[dict[str, Any], Any]:
        """What ``LLM.generate`` takes."""
        from vllm import SamplingParams

        spans = isinstance(self.prompt, PromptSpec)
        prompt: dict[str, Any] = {"prompt_token_ids": self.prompt.physical() if spans else list(self.prompt)}
        if self.salt is not None:
            prompt["cache_salt"] = self.salt
        meta = self.prompt.meta() if spans and self.meta is None else self.meta
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": self.tokens, "logprobs": 8, "ignore_eos": True}
        options |= {"extra_args": {"minipic": meta}} if meta is not None else {}
        return prompt, SamplingParams(**{**options, **self.params})


@dataclass(frozen=True)
class Answer:
    """What came back for one request (its first sequence, where there are several)."""

    tokens: list[int]
    logprobs: list[dict[int, float]]  # per generated token, by token id
    cached: int  # prompt tokens not computed
    spans: list[dict[str, Any]]  # status per span
    text: str
    outputs: list[Any]  # vLLM's own, for n > 1

    @classmethod
    def of(cls, out: Any) -> "Answer":
        """From vLLM's RequestOutput."""
        first = out.outputs[0]
        rows = [{t: entry.logprob for t, entry in row.items()} for row in first.logprobs or []]
        spans = ((out.kv_transfer_params or {}).get("minipic") or {}).get("spans", [])
        return cls(list(first.token_ids), rows, out.num_cached_tokens or 0, spans, first.text, out.outputs)


class Engine:
    """A ``vllm.LLM`` with the plugin on, and an eye on its scheduler."""

    def __init__(self, model: Path | str, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "control_tokens": tuple(CONTROL),
            "dtype": "float32",
            "max_model_len": 1024,
            "num_gpu_blocks_override": 160,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "seed": 0,
            **gpu_share(),
        }
        self._arguments = {"model": str(model), **defaults, **options}
        self.met: Counter[str] = Counter()
        self._start()

    def _start(self) -> None:
        import vllm

        import minipic_server

        self.llm = vllm.LLM(**minipic_server.engine_kwargs(**self._arguments))
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self._watch()

    def run(self, *asks: Ask) -> list[Answer]:
        """Answers of one batch, in order."""
        inputs = [ask.engine_input() for ask in asks]
        loras = [ask.lora for ask in asks]
        try:
            outs = self.llm.generate(
                [prompt for prompt, _ in inputs],
                [params for _, params in inputs],
                use_tqdm=False,
                lora_request=loras if any(loras) else None,
                priority=[ask.priority for ask in asks] if any(ask.priority for ask in asks) else None,
            )
        except Exception:
            if self.busy:  # the engine died in the middle: it must not take other tests with it
                self.close()
                self._start()
            raise
        return [Answer.of(out) for out in outs]

    @property
    def busy(self) -> bool:
        """Whether requests are left in the engine; never between two calls."""
        return bool(self.scheduler.requests)

    def ask(self, prompt: PromptSpec | list[int], tokens: int = 6, **options: Any) -> Answer:
        """The answer of a single request."""
        return self.run(Ask(prompt, tokens, **options))[0]

    def warm(self, *specs: PromptSpec) -> None:
        """Fill the cache with the prompts' pieces."""
        self.run(*(Ask(spec, 1) for spec in specs))

    def reset(self) -> None:
        """Forget everything cached."""
        assert self.llm.reset_prefix_cache()

    def poison(self) -> None:
        """Fill the whole cache with NaN: what was never written must not reach any output."""
        self.reset()
        for cache in self.caches():
            cache.fill_(float("nan"))

    def block_hashes(self, document: tuple[int, ...], ssep: int = CONTROL.ssep) -> list[bytes]:
        """Hashes of the span's blocks in the prompt that was scheduled last."""
        ids, size = self.seen.prompt_token_ids, self.scheduler.block_size
        wanted = [ssep, *document]
        first = next(i for i in range(0, len(ids), size) if ids[i : i + len(wanted)] == wanted)
        return self.seen.block_hashes[first // size : (first + len(wanted) - 1) // size + 1]

    def caches(self) -> Sequence[Any]:
        """Each layer's paged cache: [blocks, kv heads, block size, 2 * head]."""
        return self.core.model_executor.driver_worker.worker.model_runner.kv_caches

    def close(self) -> None:
        """Free the engine's memory."""
        self.core.shutdown()

    def _watch(self) -> None:
        scheduler, size = self.scheduler, self.scheduler.block_size
        schedule, preempt = scheduler.schedule, scheduler._preempt_request

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            kinds = set()
            for request_id in output.num_scheduled_tokens:
                request = self.seen = scheduler.requests[request_id]
                spans = bool((request.sampling_params.extra_args or {}).get("minipic"))
                kinds.add(spans)
                self.met["chunk ends inside a span"] += spans and _ends_inside_a_span(request, size)
            self.met["mixed batch"] += len(kinds) == 2
            return output

        def preempted(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.met["preemption"] += 1
            return preempt(request, *args, **kwargs)

        scheduler.schedule, scheduler._preempt_request = watched, preempted


def _ends_inside_a_span(request: Any, size: int) -> bool:
    """Whether what is scheduled so far ends between two visible tokens of one span."""
    ids, end = request.prompt_token_ids, request.num_computed_tokens
    if end >= len(ids) or ids[end] in CONTROL or ids[end - 1] in CONTROL:
        return False
    marks = [ids[i] for i in range(end - end % size, -1, -size) if ids[i] in CONTROL[:2]]
    return bool(marks) and marks[0] == CONTROL.ssep
