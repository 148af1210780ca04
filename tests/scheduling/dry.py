"""vLLM's real scheduler and block pool with a make-believe model, so that thousands of schedules run in seconds.

The model runner here keeps in every KV slot a number that says what belongs there: a hash over everything the token
depends on (a span token: the anchor and its span so far; a dependent token: all it sees, with places). Each step writes
its slots, then reads all that its rows look at; a block that was stolen, published but never written, hit wrongly, or
computed before what it sees, is an error at once. Sampled tokens follow from that content too, so outputs can be
compared with what they must be.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler

from minipic_sdk.layout import ControlTokens, Layout
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.plan import RequestPlan
from minipic_server.scheduler import REARRANGED
from minipic_server.state import known_state
from reference.prompts import Control, PromptSpec

CONTROL = ControlTokens(*Control())
BLOCK = 16
UNSEEN = 0  # content of control tokens and padding: no row may read it
VOCABULARY = 500


def contents(layout: Layout, ids: list[int], anchor: tuple[int, ...]) -> np.ndarray:
    """What belongs into the slot of each token of a span prompt. [tokens]"""
    out = np.full(len(ids), UNSEEN, dtype=np.int64)
    for i in sorted(range(len(layout.segments)), key=lambda i: layout.segments[i].kind == "dependent"):
        s = layout.segments[i]
        if s.kind == "dependent":
            continue
        start = hash(("span", anchor)) if s.kind == "span" else hash("head")
        out[s.visible_start : s.visible_stop] = _chain(start, ids[s.visible_start : s.visible_stop])
    for s in sorted((s for s in layout.segments if s.kind == "dependent"), key=lambda s: s.logical):
        seen = sorted(layout.context(layout.segments.index(s)), key=lambda t: t.logical_shown)
        fold = tuple((t.logical_shown, *out[t.shown_start : t.visible_stop].tolist()) for t in seen)
        stop = s.visible_stop if s is not layout.segments[-1] else len(ids)
        out[s.visible_start : stop] = _chain(hash((s.logical, fold)), ids[s.visible_start : stop])
    return out


def plain_contents(ids: list[int]) -> np.ndarray:
    """The same for a plain prompt: everything before a token. [tokens]"""
    return np.array(_chain(hash("head"), ids), dtype=np.int64)


def _chain(start: int, ids: Iterable[int]) -> list[int]:
    out: list[int] = []
    for token in ids:
        start = hash((start, token))
        out.append(start)
    return out


def sample(content: int) -> int:
    """The token that follows what this content stands for."""
    return 1 + content % VOCABULARY


def answer(prompt: PromptSpec | list[int], tokens: int) -> list[int]:
    """What a request must generate, from its own words alone."""
    out: list[int] = []
    while len(out) < tokens:
        if isinstance(prompt, PromptSpec):
            content = _expected(prompt.physical(), prompt.meta(), out)[-1]
        else:
            content = plain_contents([*prompt, *out])[-1]
        out.append(sample(int(content)))
    return out


def _expected(ids: list[int], meta: str | None, generated: list[int]) -> np.ndarray:
    if meta is None:
        return plain_contents([*ids, *generated])
    parsed = RequestMeta.from_json(meta)
    layout = parsed.parse(ids, control=CONTROL, block_size=BLOCK)
    if not layout.has_control:
        return plain_contents([*ids, *generated])
    last = layout.segments[-1]
    out = contents(layout, ids, parsed.anchor)
    more = _chain(int(out[last.visible_stop - 1]), generated)
    return np.concatenate([out, np.array(more, dtype=np.int64)])


@dataclass
class View:
    """One request as the model runner knows it."""

    prompt: list[int]
    meta: str | None
    tokens: list[int]  # prompt and what was generated
    blocks: list[int]
    plan: RequestPlan | None = None
    expected: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def rebuild(self) -> None:
        """After the prompt changed."""
        if self.meta is not None:
            layout = RequestMeta.from_json(self.meta).parse(self.prompt, control=CONTROL, block_size=BLOCK)
            self.plan = RequestPlan.from_layout(layout) if layout.has_control else None
        self.expected = _expected(self.prompt, self.meta, self.tokens[len(self.prompt) :])

    def grow(self, token: int) -> None:
        """One more generated token."""
        self.tokens.append(token)
        self.expected = np.append(self.expected, np.int64(hash((int(self.expected[-1]), token))))

    def slots(self) -> np.ndarray:
        """KV slot of every token. [blocks * BLOCK]"""
        return (np.array(self.blocks)[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


class DryRunner:
    """Both model runners' side of the protocol: V1 keeps prompts, V2 gets them anew after preemption."""

    def __init__(self, num_blocks: int) -> None:
        self.kv = np.full(num_blocks * BLOCK, -1, dtype=np.int64)
        self.views: dict[str, View] = {}
        self.computed = 0  # tokens

    def execute(self, output: Any) -> dict[str, list[int]]:
        """Run one step; the sampled tokens of every scheduled request."""
        for request_id in output.finished_req_ids:
            self.views.pop(request_id, None)
        start = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for new in output.scheduled_new_reqs:
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            meta = (new.sampling_params.extra_args or {}).get(XARGS_KEY)
            view = View(list(new.prompt_token_ids), meta, tokens, list(new.block_ids[0]))
            view.rebuild()
            self.views[new.req_id] = view
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            start[request_id] = cached.num_computed_tokens[i]
            self._continue(output, request_id, cached.new_block_ids[i], request_id in cached.resumed_req_ids)
        work = [(self.views[r], start[r], n) for r, n in output.num_scheduled_tokens.items()]
        for view, done, count in work:
            assert done + count <= len(view.tokens)
            self.computed += count
            self.kv[view.slots()[done : done + count]] = view.expected[done : done + count]
        for view, done, count in work:
            self._read(view, done, count)
        sampled: dict[str, list[int]] = {}
        for request_id, (view, done, count) in zip(output.num_scheduled_tokens, work, strict=True):
            finished = done + count == len(view.tokens)
            sampled[request_id] = [sample(int(view.expected[-1]))] if finished else []
            for token in sampled[request_id]:
                view.grow(token)
        return sampled

    def _continue(self, output: Any, request_id: str, new_blocks: Any, resumed: bool) -> None:
        view = self.views[request_id]
        more = list(new_blocks[0]) if new_blocks is not None else []
        if not resumed:
            view.blocks += more
            return
        view.blocks = more
        everything = output.scheduled_cached_reqs.all_token_ids[request_id]
        meta = getattr(output, REARRANGED, {}).get(request_id)
        if meta is not None:
            view.meta, view.prompt = meta, everything[: len(view.prompt)]
        view.tokens = [*view.prompt, *everything[len(view.prompt) :]]
        view.rebuild()

    def _read(self, view: View, done: int, count: int) -> None:
        slots = view.slots()
        if view.plan is None:
            ranges = [(0, done + count)]
        else:
            ranges = [
                (run.start, run.start + run.length)
                for row in view.plan.rows(0, 0, done, count)
                for run in (*row.context, row.own)
            ]
        for first, last in ranges:
            expected = view.expected[first:last]
            assert (expected != UNSEEN).all(), f"reads control tokens or padding in [{first}, {last})"
            wrong = np.flatnonzero(self.kv[slots[first:last]] != expected)
            assert not len(wrong), f"reads foreign KV at token {first + int(wrong[0])} of {view.prompt[:4]}..."


class EmptyConnector:
    """A KV connector that has lost everything: what the scheduler asks it, and nothing found."""

    supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        """No token more than the GPU has."""
        return 0, False

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        """Blocks may be freed."""
        return False, None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@dataclass
class Dry:
    """A scheduler, the make-believe runner, and requests as a client sees them."""

    scheduler: Any
    hasher: Any
    blocks: int
    lag: int = 0  # steps that are scheduled ahead of the runner's answers, as asynchronous scheduling does

    def __post_init__(self) -> None:
        self.runner = DryRunner(self.blocks)
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.trace: list[dict[str, int]] = []
        self._pending: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self._count = 0
        self.twice = 0  # spans computed to their end while another copy was there
        self._hits: dict[tuple[str, int], int] = {}  # leading blocks that an admitted request did not compute
        self.pool = self.scheduler.kv_cache_manager.block_pool
        cache = self.pool.cache_full_blocks

        def watched(**kwargs: Any) -> Any:
            names = ("request", "blocks", "num_cached_blocks", "num_full_blocks")
            self.twice += self._again(*(kwargs[name] for name in names))
            return cache(**kwargs)

        self.pool.cache_full_blocks = watched
        look_up, stock = self.scheduler._get_local_prefix_cache_hit, Scheduler._get_local_prefix_cache_hit

        def compared(request: Any) -> Any:
            found = look_up(request)
            assert found == stock(self.scheduler, request), "vLLM's own look-up finds something else"
            return found

        self.scheduler._get_local_prefix_cache_hit = compared

    def _again(self, request: Any, blocks: list[Any], done: int, full: int) -> int:
        """Spans that end in blocks [done, full) of a request and are there without what it computed."""
        state, count = known_state(request), 0
        hits = self._hits.setdefault((request.request_id, request.num_preemptions), done)
        for segment, hashes in state.span_hashes() if state is not None else ():
            first = segment.start // BLOCK
            if hashes and done < first + len(hashes) <= full:
                there = (i < hits or self._copies(h, blocks[i]) for i, h in enumerate(hashes, first))
                count += all(there)
        return count

    def _copies(self, block_hash: bytes, own: Any) -> int:
        found = self.pool.cached_block_hash_to_block._cache.get(make_block_hash_with_group_id(block_hash, 0), {})
        blocks = found.values() if isinstance(found, dict) else [found]
        return sum(block is not own for block in blocks)

    def add(self, prompt: PromptSpec | list[int], tokens: int = 1, *, salt: str | None = None, **options: Any) -> str:
        """Submit a request; its id."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._count += 1
        request_id = options.pop("request_id", f"r{self._count}")
        priority = options.pop("priority", 0)
        if isinstance(prompt, PromptSpec):
            ids, options["extra_args"] = prompt.physical(), {XARGS_KEY: prompt.meta()}
        else:
            ids = list(prompt)
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, **options)
        request = Request(
            request_id,
            ids,
            params,
            None,
            cache_salt=salt,
            block_hasher=self.hasher,
            priority=priority,
            arrival_time=float(self._count),
        )
        self.outputs[request_id] = []
        self.scheduler.add_request(request)
        return request_id

    def abort(self, request_id: str) -> None:
        """The client is gone."""
        from vllm.v1.request import RequestStatus

        if request_id not in self.finished:
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            self.finished[request_id] = "abort"

    def step(self) -> int:
        """Schedule and run once; the number of scheduled tokens."""
        output = self.scheduler.schedule()
        self.trace.append(dict(output.num_scheduled_tokens))
        if output.total_num_scheduled_tokens or self.scheduler.finished_req_ids:
            self._pending.append((output, self.runner.execute(output)))
        while len(self._pending) > (self.lag if output.total_num_scheduled_tokens else 0):
            self._update(*self._pending.popleft())
        return output.total_num_scheduled_tokens

    def _update(self, output: Any, sampled: dict[str, list[int]]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, [list(sampled[r]) for r in ids])
        for outputs in self.scheduler.update_from_output(output, answer).values():
            for out in outputs.outputs:
                assert out.request_id not in self.finished, f"{out.request_id} speaks after its end"
                self.outputs[out.request_id] += out.new_token_ids
                if out.finish_reason is not None:
                    self.finished[out.request_id] = str(out.finish_reason)

    def drain(self, limit: int = 5000) -> None:
        """Run until nothing is left; a request that waits for ever is an error."""
        idle = 0
        for _ in range(limit):
            if not self.scheduler.has_unfinished_requests() and not self._pending:
                return
            idle = 0 if self.step() else idle + 1
            assert idle < 3, f"nothing is scheduled, {self.scheduler.get_request_counts()} running and waiting"
        raise AssertionError("requests are still unfinished")
