"""The scheduler: what is cached counts wherever it stands in a prompt, and nothing is computed twice (issue 4).

Subclasses of vLLM's own schedulers (v1/core/sched/scheduler.py), selected with ``--scheduler-cls``. Plain requests take
vLLM's code paths unchanged; a span request differs in three moments:

* on arrival its spans' status is decided,
* when it is about to be scheduled for the first time, or again after preemption, its spans are arranged so that the
  resident ones are one contiguous hit (arrange.py); the missing ones are then computed in place, in continuous
  batching, and shared at once: vLLM puts blocks into its hash map when they are scheduled,
* while another request is in the middle of computing a span that it needs, it waits for that span, for a bounded
  number of steps, so nothing can starve.

Nothing here holds blocks for a request that isn't running, so nothing can deadlock: a request that gets no blocks is
arranged anew at its next try. But what waiting requests want is evicted last.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from minipic_server.arrange import arrange
from minipic_server.config import SpanConfig
from minipic_server.hashing import SpanHasher
from minipic_server.pins import Pins, pin_limit
from minipic_server.refusals import check_config
from minipic_server.residency import Residency, SpanKVCacheManager
from minipic_server.state import SpanState, known_state
from minipic_server.status import KEY_DIGITS, Arrival, SpanHistory
from minipic_server.wanted import Wanted

REARRANGED = "minipic_rearranged"  # on the scheduler's output: metadata of resumed requests, for model runner V1
# A span computed although it was resident or in flight: by mistake (issue 4 wants 0 of those); because its request had
# waited long enough, reads no cache or has its head first, which is missing, beside a KV connector; as vLLM does with
# the last block of a prompt; because one prompt holds it twice.
RECOMPUTED = ("computed_twice", "in_place", "last_block_again", "repeated_in_prompt")
MAX_WAIT_STEPS = 256  # then it computes the span itself
HIT_SHARE_STEPS = 10
COUNTS = ("queries", "hits", "query_tokens", "hit_tokens", "arranged", "waited", *RECOMPUTED)
SPANS_REMEMBERED = 1 << 16  # whose statuses are kept for clients that stream and ask afterwards
ID_CHARS = 256  # of a request that is remembered
# vLLM's own request ids are the response's with a sequence before it and a prompt and a random part behind it.
_SHOWN_ID = re.compile(r"^\d+_(?=.)|(?<=.)-\d+-[0-9a-f]{8}$")


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
        # The base class names its manager's class itself; ours only overrides a method.
        self.kv_cache_manager.__class__ = SpanKVCacheManager
        self.residency = Residency(self.kv_cache_manager.block_pool, self._block_bytes())
        longest = -(-self.vllm_config.model_config.max_model_len // self.block_size)
        pool = self.kv_cache_manager.block_pool
        self.pins = Pins(pool, pin_limit(pool.num_gpu_blocks, config.pin_share, longest))
        self.history = SpanHistory()
        self.span_log: dict[str, list[dict[str, object]]] = {}
        self._logged = 0  # spans and requests in it
        self.span_counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.hit_shares = [0] * (HIT_SHARE_STEPS + 1)  # requests by the share of their spans that were hits
        self._filling: dict[bytes, tuple[Request, list[bytes]]] = {}  # key -> who is amid computing it, its blocks
        self._wanted = Wanted()
        self._arrivals: list[tuple[str, SpanState, Arrival]] = []  # whose statuses are decided, but not written down
        self._asked: tuple[Request, SpanState, list[str], int] | None = None  # looked up last, see _admitted

    def _block_bytes(self) -> int:
        """Of one KV block, over all layers and tensor-parallel ranks."""
        config = self.kv_cache_config
        own = sum(g.kv_cache_spec.page_size_bytes * len(g.layer_names) for g in config.kv_cache_groups)
        return own * self.vllm_config.parallel_config.tensor_parallel_size

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        state = known_state(request)
        if state is not None:
            unsalted = partial(self.span_hasher.unsalted_key, request, state.meta.anchor)
            wanted = self._wanted.__contains__
            leads = len(self.residency.blocks(request.block_hashes))
            arrival = self.history.arrive(request, state, leads, self.residency.leading, wanted, unsalted)
            self._arrivals.append((request.request_id, state, arrival))
            self._wanted.add(request.request_id, state.chains)

    def get_grammar_bitmask(self, *args: Any, **kwargs: Any) -> Any:
        """Asked between the launch of a step and the wait for it: time for what nobody waits for."""
        self._settle()
        return super().get_grammar_bitmask(*args, **kwargs)

    def _settle(self) -> None:
        """Write down the statuses of requests that have come."""
        self.history.remember()
        arrivals, self._arrivals = self._arrivals, []
        for request_id, state, arrival in arrivals:
            state.statuses = arrival.statuses()
            self._count(state)
            self._log(request_id, state)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if not super()._handle_blocked_waiting_request(request):
            return False
        self._admitted()
        state = known_state(request)
        if state is None or not self._filling or state.waited >= MAX_WAIT_STEPS or request.skip_reading_prefix_cache:
            return True
        if any(self._in_flight(key) for key in state.keys):
            state.waited += 1
            self.span_counts["waited"] += 1
            return False
        return True

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        state = known_state(request)
        if state is None:
            return super()._get_local_prefix_cache_hit(request)
        # Without a look-up nothing is hit, and a span can't be computed before the anchor it sees.
        reads = self.kv_cache_manager.prefix_cache_lookup_enabled(request)
        blocks: list[KVCacheBlock] = []
        if reads:
            blocks = self.residency.blocks(request.block_hashes)
            if self._arrange(request, state, len(blocks)):
                self.span_counts["arranged"] += 1
                blocks = self.residency.blocks(request.block_hashes)
            blocks = blocks[: (request.num_tokens - 1) // self.block_size]  # the last token gives the logits
        hit = len(blocks) * self.block_size
        self._asked = (request, state, self._recomputed(state, hit, reads), hit)
        return self.kv_cache_manager.create_kv_cache_blocks((blocks,)), hit, 0, False

    def _arrange(self, request: Request, state: SpanState, have: int) -> bool:
        """Whether anything moved; ``have``: leading blocks of the prompt that are there."""
        if self.connector is None:
            return arrange(request, state, have, self.residency.leading)
        if state.arranged:
            return False  # an offloading connector keeps the keys that it saw first, in their order
        self._settle()
        state.arranged = True
        return arrange(request, state, have, self.residency.leading, self.history.evicted(state))

    def _recomputed(self, state: SpanState, hit: int, reads: bool) -> list[str]:
        """What would be computed although it is there or on its way, if this request were scheduled now."""
        names: list[str] = []
        mine: set[bytes] = set()
        size = state.layout.block_size
        if state.spans_stop <= hit:
            return names
        for segment, hashes in state.span_hashes():
            if not hashes or segment.start + len(hashes) * size <= hit:
                continue
            key = hashes[-1]
            if key in mine:
                names.append("repeated_in_prompt")
            elif self.residency.leading(hashes) == len(hashes) or self._in_flight(key):
                last_only = segment.start // size + len(hashes) - 1 <= hit // size
                first = state.arranged  # beside a KV connector, see arrange.py
                forced = not reads or first or state.waited >= MAX_WAIT_STEPS or segment is state.layout.segments[-1]
                names.append("last_block_again" if last_only else "in_place" if forced else "computed_twice")
            mine.add(key)
        return names

    def _admitted(self) -> None:
        """Note what the request that was looked up last leaves unfinished, if it was scheduled after that."""
        if self._asked is None:
            return
        (request, state, recomputed, hit), self._asked = self._asked, None
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            fetched = self.history.fetched(state, hit, request.num_computed_tokens)
            self.span_counts["hits"] += len(fetched)
            self.span_counts["hit_tokens"] += sum(fetched)
        if request.status != RequestStatus.RUNNING:
            return
        for name in recomputed:
            self.span_counts[name] += 1
        if request in self._inflight_prefills:
            for _, hashes in state.span_hashes():
                if self.residency.leading(hashes) < len(hashes) and not self._in_flight(hashes[-1]):
                    self._filling[hashes[-1]] = (request, hashes)

    def _in_flight(self, key: bytes) -> bool:
        """Whether a running request is in the middle of computing this span; blocks count from being scheduled."""
        if key not in self._filling:
            return False
        owner, hashes = self._filling[key]
        if owner.status == RequestStatus.RUNNING and self.residency.leading(hashes) < len(hashes):
            return True
        del self._filling[key]
        return False

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self.pins.expire()
        if self._wanted and self.waiting and len(self.running) < self.max_num_active_reqs:
            self.residency.spare(self._wanted, self.max_num_scheduled_tokens // self.block_size + len(self.running))
        output = super().schedule(*args, **kwargs)
        self._admitted()
        for key in list(self._filling):
            self._in_flight(key)  # forgets what is done
        if not self.use_v2_model_runner and output.scheduled_cached_reqs.resumed_req_ids:
            resumed = ((i, known_state(self.requests[i])) for i in output.scheduled_cached_reqs.resumed_req_ids)
            setattr(output, REARRANGED, {i: state.meta.to_json() for i, state in resumed if state is not None})
        return output

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Priority preemption can take back a chunk scheduled in this very step, whose blocks are published already and
        # will never be written; blocks from earlier steps are below num_computed_tokens. Plain requests too: their
        # head blocks are hit by span requests.
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        unwritten = set(blocks[request.num_computed_tokens // self.block_size :])
        self.pins.forget(unwritten)
        self.kv_cache_manager.evict_blocks(unwritten)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        kv_transfer, ec_transfer = super()._free_request(request, *args, **kwargs)
        state = known_state(request)
        if state is not None:
            self._settle()
            kv_transfer = {**(kv_transfer or {}), "minipic": {"spans": state.statuses}}
            self._wanted.remove(request.request_id)
        return kv_transfer, ec_transfer

    def _count(self, state: SpanState) -> None:
        spans = [cast("int", status["tokens"]) for status in state.statuses]
        hits = [n for n, status in zip(spans, state.statuses, strict=True) if status["reason"] is None]
        counts = self.span_counts
        counts["queries"] += len(spans)
        counts["hits"] += len(hits)
        counts["query_tokens"] += sum(spans)
        counts["hit_tokens"] += sum(hits)
        if spans:
            self.hit_shares[HIT_SHARE_STEPS * len(hits) // len(spans)] += 1

    def _log(self, request_id: str, state: SpanState) -> None:
        shown = _SHOWN_ID.sub("", request_id)
        if len(shown) > ID_CHARS:
            return
        self._forget(shown)  # clients choose ids, and prompts of one request share one
        self.span_log[shown] = state.statuses
        self._logged += 1 + len(state.statuses)
        while self._logged > SPANS_REMEMBERED and len(self.span_log) > 1:
            self._forget(next(iter(self.span_log)))

    def _forget(self, shown: str) -> None:
        if shown in self.span_log:
            self._logged -= 1 + len(self.span_log.pop(shown))

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Forget everything, what is pinned too: vLLM refuses while any block is held."""
        self.pins.clear()
        return super().reset_prefix_cache(*args, **kwargs)

    def minipic(self, operation: str, payload: Any) -> Any:
        """Answer a question of the HTTP routes; reached through ``EngineCore.minipic``."""
        self._settle()
        self.pins.expire()  # an engine without requests does not schedule; the metrics ask every second
        if operation == "lookup":
            return [self._lookup(*self._chain(**span)) for span in payload]
        if operation == "room":
            return self.pins.room(self._chain(**span) for span in payload)
        if operation == "pin":
            return [self.pins.pin(self._chain(**span), payload["ttl"]) for span in payload["spans"]]
        if operation == "unpin":
            return [self.pins.unpin(self._chain(**span)[-1]) for span in payload]
        if operation == "statuses":
            return self.span_log.get(payload)
        if operation == "stats":
            return {**self.span_counts, "hit_shares": self.hit_shares, **self.residency.usage(), **self.pins.usage()}
        raise ValueError(f"unknown operation {operation!r}")

    def _chain(
        self, ids: list[int], anchor: list[int], salt: str | None, lora: Sequence[str] | None = None
    ) -> list[bytes]:
        """Hashes of a span's blocks."""
        adapter = None if lora is None else (lora[0], lora[1])
        return [*self.span_hasher.span_chain(ids, tuple(anchor), salt, adapter)]

    def _lookup(self, *hashes: bytes) -> tuple[str, int, int, bool, float | None]:
        """Key, blocks and leading resident blocks of a span, its pin; computes nothing and refreshes nothing."""
        return hashes[-1].hex()[:KEY_DIGITS], len(hashes), self.residency.leading(hashes), *self.pins.of(hashes[-1])


class SpanScheduler(_SpanScheduling):
    """For engines without asynchronous scheduling."""


class AsyncSpanScheduler(_SpanScheduling, AsyncScheduler):
    """For engines with asynchronous scheduling, vLLM's default."""
