"""Questions to vLLM's block pool, in the terms of spans (v1/core/block_pool.py)."""

from vllm.v1.core.block_pool import BlockPool

_GROUP = 0  # spans are refused for models with several KV cache groups


class Residency:
    """Which blocks are in the prefix cache."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def has(self, block_hash: bytes) -> bool:
        """Whether a block with this hash can be hit now; blocks scheduled in this very step count."""
        return self._pool.get_cached_block(block_hash, [_GROUP]) is not None  # pyright: ignore[reportArgumentType]

    def usage(self) -> dict[str, float]:
        """Blocks of the pool: in total, free (cached ones among them), and the share in use."""
        return {
            "blocks": self._pool.num_gpu_blocks,
            "free_blocks": self._pool.get_num_free_blocks(),
            "usage": self._pool.get_usage(),
        }
