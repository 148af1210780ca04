"""Whether a corpus fits into the server's cache."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Room:
    """Blocks that a corpus takes and that the server has; ``None``: the server doesn't tell."""

    blocks: int
    cache_blocks: int | None
    block_bytes: int | None

    @classmethod
    def of(cls, stats: Mapping[str, Any], blocks: int) -> "Room":
        """From the answer of the stats route.

        Args:
            stats: may be empty.
            blocks: that the corpus takes.
        """
        return cls(blocks, stats.get("blocks"), stats.get("block_bytes"))

    @property
    def fits(self) -> bool | None:
        """Whether all of it can be cached at once, with nothing else."""
        return None if self.cache_blocks is None else self.blocks < self.cache_blocks  # one block is vLLM's own

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        size = None if self.block_bytes is None else self.blocks * self.block_bytes
        return {**asdict(self), "kv_bytes": size, "fits": self.fits}

    def sentence(self, what: str) -> str:
        """For people.

        Args:
            what: takes the blocks.
        """
        takes = f"{what}: {self.blocks} KV blocks"
        if self.block_bytes:
            takes += f" ({size(self.blocks * self.block_bytes)})"
        if self.cache_blocks is None:
            return f"{takes}, duplicates counted once"
        has = f"of the {self.cache_blocks} that the server has"
        if self.fits:
            return f"{takes} {has}: it fits"
        return f"{takes} {has}: it does NOT fit, the documents used longest ago are evicted again"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
