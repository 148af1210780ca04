"""Spans that eviction must not take: their blocks are referenced, as if a request used them, until unpinned or expired.

Bounded, so that nothing can starve: however much is pinned, a prompt of ``max_model_len`` tokens still fits beside it, and
vLLM runs any request alone if need be. Resetting the prefix cache drops all pins: what they hold is to be forgotten.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash

ABSENT = "not resident"  # the one refusal that computing the span helps
_SPARE_DEADLINES = 16


def pin_limit(blocks: int, share: float, longest: int) -> int:
    """KV blocks that may be pinned.

    Args:
        blocks: of the pool; one of them is vLLM's own.
        share: of the pool that may be pinned.
        longest: blocks of the longest prompt.
    """
    return max(0, min(int(blocks * share), blocks - 1 - longest))


@dataclass(slots=True)
class _Pin:
    hashes: tuple[bytes, ...]
    until: float | None  # by the clock; None: until it is unpinned


@dataclass(slots=True)
class _Held:
    block: Any
    pins: int


class Pins:
    """What is pinned, by span key."""

    def __init__(self, pool: BlockPool, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._clock = pool, clock
        self.limit = limit
        self._pins: dict[bytes, _Pin] = {}
        self._held: dict[bytes, _Held] = {}  # by block hash: spans may share leading blocks
        self._deadlines: list[tuple[float, bytes]] = []

    def pin(self, hashes: Sequence[bytes], ttl: float | None) -> str | None:
        """Hold a resident span; pinned again, it has the new time to live. ``None``, or why not.

        Args:
            hashes: of its blocks.
            ttl: seconds; ``None``: until it is unpinned.
        """
        self.expire()
        key = hashes[-1]
        if key not in self._pins:
            fresh = [h for h in dict.fromkeys(hashes) if h not in self._held]
            refusal = self._too_much(len(self._held) + len(fresh), len(hashes))
            if refusal is not None:
                return refusal
            blocks: list[Any] = []
            for block_hash in fresh:
                found = self._pool.get_cached_block(BlockHash(block_hash), [0])
                if found is None:
                    return ABSENT
                blocks += found
            self._pool.touch(blocks)
            self._held |= {h: _Held(block, 0) for h, block in zip(fresh, blocks, strict=True)}
            for block_hash in dict.fromkeys(hashes):
                self._held[block_hash].pins += 1
        until = None if ttl is None else self._clock() + ttl
        self._pins[key] = _Pin(tuple(dict.fromkeys(hashes)), until)
        if until is not None:
            heapq.heappush(self._deadlines, (until, key))
            if len(self._deadlines) > 2 * len(self._pins) + _SPARE_DEADLINES:  # of spans pinned anew or unpinned
                self._deadlines = [(p.until, k) for k, p in self._pins.items() if p.until is not None]
                heapq.heapify(self._deadlines)
        return None

    def room(self, spans: Iterable[Sequence[bytes]]) -> list[str | None]:
        """Which of these could be pinned, one after another: ``None``, or why not."""
        self.expire()
        planned: set[bytes] = set()
        out: list[str | None] = []
        for hashes in spans:
            fresh = {h for h in hashes if h not in self._held and h not in planned}
            refusal = self._too_much(len(self._held) + len(planned) + len(fresh), len(hashes))
            out.append(refusal)
            if refusal is None:
                planned |= fresh
        return out

    def _too_much(self, would: int, own: int) -> str | None:
        if would <= self.limit:
            return None
        if not self.limit:
            return "nothing can be pinned: the cache has no room beside a prompt of the model's full length"
        return (
            f"pinned spans may take {self.limit} KV blocks, {len(self._held)} are taken and this one has {own}: "
            "unpin some, or serve with a larger --pin-share"
        )

    def unpin(self, key: bytes) -> bool:
        """Let go of a span; it stays cached until it is evicted. Whether it was pinned."""
        pin = self._pins.pop(key, None)
        if pin is None:
            return False
        free: list[Any] = []
        for block_hash in reversed(pin.hashes):  # the last block is evicted first, as vLLM does it
            held = self._held.get(block_hash)
            if held is None:
                continue
            held.pins -= 1
            if not held.pins:
                del self._held[block_hash]
                free.append(held.block)
        self._pool.free_blocks(free)
        return True

    def expire(self) -> None:
        """Let go of what has lived its time."""
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            until, key = heapq.heappop(self._deadlines)
            pin = self._pins.get(key)
            if pin is not None and pin.until == until:  # not pinned anew meanwhile
                self.unpin(key)

    def clear(self) -> None:
        """Let go of everything."""
        for key in list(self._pins):
            self.unpin(key)
        self._deadlines.clear()

    def forget(self, block_ids: Iterable[int]) -> None:
        """Let go of spans with a block that was taken out of the prefix cache."""
        gone = set(block_ids)
        lost = {h for h, held in self._held.items() if held.block.block_id in gone}
        if lost:
            for key in [k for k, pin in self._pins.items() if not lost.isdisjoint(pin.hashes)]:
                self.unpin(key)

    def of(self, key: bytes) -> tuple[bool, float | None]:
        """Whether a span is pinned, and for how many seconds more; ``None``: until it is unpinned."""
        pin = self._pins.get(key)
        if pin is None:
            return False, None
        return True, None if pin.until is None else max(0.0, pin.until - self._clock())

    def usage(self) -> dict[str, int]:
        """For the statistics."""
        return {"pinned_spans": len(self._pins), "pinned_blocks": len(self._held), "pin_limit": self.limit}
