"""Questions to vLLM's block pool, in the terms of spans (v1/core/block_pool.py)."""

from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, get_block_hash, make_block_hash_with_group_id

from minipic_server.state import known_state

if TYPE_CHECKING:
    from vllm.v1.request import Request

_GROUP = make_block_hash_with_group_id(BlockHash(b""), 0)  # spans are refused for models with several KV cache groups
_KEY = attrgetter("_block_hash")  # the property takes three times as long
_LOOK_AHEAD = 4  # times as many blocks are looked at as are needed, when many of them are worth keeping


class SpanKVCacheManager(KVCacheManager):
    """Counts what is cached of a span request; vLLM takes it for a block's place in the prompt that computed it."""

    def estimate_cached_tokens(self, request: "Request") -> int:
        if known_state(request) is None:
            return super().estimate_cached_tokens(request)
        manager = self.coordinator.single_type_managers[0]
        return manager.num_cached_block.get(request.request_id, 0) * manager.block_size


class Residency:
    """Which blocks are in the prefix cache, and which of them go next."""

    def __init__(self, pool: BlockPool, block_bytes: int = 0) -> None:
        self._pool, self._block_bytes = pool, block_bytes
        # The last answer of ``blocks``: to which hashes, what, and the keys that these blocks had.
        self._answer: tuple[Sequence[bytes], list[KVCacheBlock], list[bytes]] = [], [], []

    def has(self, block_hash: bytes) -> bool:
        """Whether a block with this hash can be hit now; blocks scheduled in this very step count."""
        return block_hash + _GROUP in self._cached()

    def leading(self, hashes: Sequence[bytes]) -> int:
        """Leading blocks of a span that can be hit now; asked for every span of every request, hence not ``has``."""
        cached = self._cached()
        there = [*map(cached.__contains__, [h + _GROUP for h in hashes])]
        return len(hashes) if all(there) else there.index(False)

    def blocks(self, hashes: Sequence[bytes]) -> list[KVCacheBlock]:
        """The leading blocks themselves: what vLLM's own look-up finds, in a fraction of its time.

        Asked when a request comes and when it is scheduled, with the same list, to which vLLM only appends: a block
        that still has its key is still in the cache. Not to change.
        """
        asked, blocks, keys = self._answer
        if asked is not hashes or [*map(_KEY, blocks)] != keys:
            blocks, keys = [], []
        more = [h + _GROUP for h in hashes[len(blocks) :]]
        found = [*map(self._cached().get, more)]
        if not all(found):
            del found[[block is None for block in found].index(True) :]
        blocks = blocks + [b if isinstance(b, KVCacheBlock) else next(iter(b.values())) for b in found if b]
        self._answer = hashes, blocks, keys + more[: len(found)]
        return blocks

    def _cached(self) -> Mapping[bytes, KVCacheBlock | dict[int, KVCacheBlock]]:
        # BlockPool.get_cached_block builds a list per question, which costs more than the look-up itself.
        return self._pool.cached_block_hash_to_block._cache  # pyright: ignore[reportPrivateUsage, reportReturnType]

    def spare(self, wanted: Container[bytes], blocks: int) -> None:
        """Let the next ``blocks`` evictions pass over cached blocks that waiting requests want.

        They go to the end of the free queue, as if used now. Nothing is held: when all is wanted, the oldest goes.
        """
        queue = self._pool.free_block_queue
        block, last = queue.fake_free_list_head.next_free_block, queue.fake_free_list_tail
        kept: list[KVCacheBlock] = []
        for _ in range(_LOOK_AHEAD * blocks):
            if block is None or block is last or blocks <= 0:
                break
            key = block._block_hash  # pyright: ignore[reportPrivateUsage]
            if key is not None and get_block_hash(key) in wanted:
                kept.append(block)
            else:
                blocks -= 1
            block = block.next_free_block
        for block in kept:
            queue.remove(block)
            queue.append(block)

    def usage(self) -> dict[str, float]:
        """Blocks of the pool: in total, free (cached ones among them), bytes of each, and the share in use."""
        return {
            "block_bytes": self._block_bytes,
            "blocks": self._pool.num_gpu_blocks,
            "free_blocks": self._pool.get_num_free_blocks(),
            "usage": self._pool.get_usage(),
        }
