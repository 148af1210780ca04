"""The scheduler: what is cached counts wherever it stands in a prompt, and nothing is computed twice (issue 4).

Subclasses of vLLM's own schedulers (v1/core/sched/scheduler.py), selected with ``--scheduler-cls``. Plain requests take
vLLM's code paths unchanged; a span request differs in three moments:

* on arrival its spans' status is decided,
* when it is about to be scheduled for the first time, or again after preemption, its spans are arranged so that the
  resident ones are one contiguous hit (arrange.py); the missing ones are then computed in place, in continuous
  batching, and shared at once: vLLM puts blocks into its hash map when they are scheduled,
* while another request is in the middle of computing a span that it needs, it waits for that span, for a bounded
  number of steps, so nothing can starve.
"""

from typing import Any

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from minipic_server.arrange import arrange, resident_blocks
from minipic_server.config import SpanConfig
from minipic_server.hashing import SpanHasher
from minipic_server.refusals import check_config
from minipic_server.residency import Residency
from minipic_server.state import SpanState, known_state
from minipic_server.status import KEY_DIGITS, SpanHistory

MAX_WAIT_STEPS = 256  # then it computes the span itself
HIT_SHARE_STEPS = 10
REQUESTS_REMEMBERED = 4096  # statuses kept for clients that stream and ask afterwards


class _SpanScheduling(Scheduler):
    """Span requests on top of any vLLM scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = SpanConfig.of(self.vllm_config)
        if config is None:
            raise ValueError("this engine was not started for spans: use `minipic serve` or engine_kwargs()")
        check_config(self.vllm_config)
        self.span_config = config
        self.span_hasher = SpanHasher(config, get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo), None)
        self.residency = Residency(self.kv_cache_manager.block_pool)
        self.history = SpanHistory()
        self.span_log: dict[str, list[dict[str, object]]] = {}
        names = ("queries", "hits", "query_tokens", "hit_tokens", "arranged", "waited", "computed_twice")
        self.span_counts = dict.fromkeys(names, 0)
        self.hit_shares = [0] * (HIT_SHARE_STEPS + 1)  # requests by the share of their spans that were hits
        self._filling: dict[str, list[tuple[int, bytes]]] = {}  # request -> (its end, key) of spans it computes

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        state = known_state(request)
        if state is not None:
            state.statuses = self.history.describe(request, state, self.residency.has, self._in_flight)
            self._count(state)
            self._log(request.request_id, state)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if not super()._handle_blocked_waiting_request(request):
            return False
        state = known_state(request)
        if state is None or not self._filling or state.waited >= MAX_WAIT_STEPS:
            return True
        mine = (hashes[-1] for _, hashes in state.span_hashes() if hashes)
        if any(self._in_flight(key) for key in mine):
            state.waited += 1
            self.span_counts["waited"] += 1
            return False
        return True

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        state = known_state(request)
        # Model runner V1 keeps the prompt of a preempted request, so there the arrangement stays as it is.
        if state is not None and (self.use_v2_model_runner or not request.num_preemptions):
            moved = arrange(request, state, self.span_config.control, self.residency.has)
            self.span_counts["arranged"] += moved
        return super()._get_local_prefix_cache_hit(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        for request_id in output.num_scheduled_tokens:
            request = self.requests[request_id]
            state = known_state(request)
            if state is not None:
                self._track(request, state)
        return output

    def _track(self, request: Request, state: SpanState) -> None:
        """Note the spans that this request has begun but not finished to compute."""
        done = request.num_computed_tokens
        if request.request_id in self._filling:
            left = [(stop, key) for stop, key in self._filling[request.request_id] if stop > done]
        else:
            left = [(s.stop, hashes[-1]) for s, hashes in state.span_hashes() if hashes and s.stop > done]
            self.span_counts["computed_twice"] += sum(self._in_flight(key) for _, key in left)
        if left:
            self._filling[request.request_id] = left
        else:
            self._filling.pop(request.request_id, None)

    def _in_flight(self, key: bytes) -> bool:
        return any(key == other for spans in self._filling.values() for _, other in spans)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._filling.pop(request.request_id, None)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._filling.pop(request.request_id, None)
        kv_transfer, ec_transfer = super()._free_request(request, *args, **kwargs)
        state = known_state(request)
        if state is not None:
            kv_transfer = {**(kv_transfer or {}), "minipic": {"spans": state.statuses}}
        return kv_transfer, ec_transfer

    def _count(self, state: SpanState) -> None:
        tokens = [s.num_visible for s, _ in state.span_hashes()]
        hits = [s["status"] == "hit" for s in state.statuses]
        counts = self.span_counts
        counts["queries"] += len(hits)
        counts["hits"] += sum(hits)
        counts["query_tokens"] += sum(tokens)
        counts["hit_tokens"] += sum(n for n, hit in zip(tokens, hits, strict=True) if hit)
        if hits:
            self.hit_shares[HIT_SHARE_STEPS * sum(hits) // len(hits)] += 1

    def _log(self, request_id: str, state: SpanState) -> None:
        self.span_log[request_id] = state.statuses
        if len(self.span_log) > REQUESTS_REMEMBERED:
            del self.span_log[next(iter(self.span_log))]

    def minipic(self, operation: str, payload: Any) -> Any:
        """Answer a question of the HTTP routes; reached through ``EngineCore.minipic``."""
        if operation == "lookup":
            return [self._lookup(**span) for span in payload]
        if operation == "statuses":
            return self.span_log.get(payload)
        if operation == "stats":
            return {**self.span_counts, "hit_shares": self.hit_shares, **self.residency.usage()}
        raise ValueError(f"unknown operation {operation!r}")

    def _lookup(self, ids: list[int], anchor: list[int], salt: str | None) -> tuple[str, int, int]:
        """Key, blocks and leading resident blocks of a span; computes nothing and refreshes nothing."""
        hashes = self.span_hasher.span_chain(ids, tuple(anchor), salt)
        return hashes[-1].hex()[:KEY_DIGITS], len(hashes), resident_blocks(hashes, self.residency.has)


class SpanScheduler(_SpanScheduling):
    """For engines without asynchronous scheduling."""


class AsyncSpanScheduler(_SpanScheduling, AsyncScheduler):
    """For engines with asynchronous scheduling, vLLM's default."""
