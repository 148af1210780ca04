"""Random token pieces for prompts, the same for the same arguments."""

import random

LOWEST, HIGHEST = 2, 500  # leaves bos, eos and the control ids out


def words(count: int, seed: int = 0) -> tuple[int, ...]:
    """``count`` random token ids."""
    source = random.Random(seed * 7919 + 13)
    return tuple(source.randint(LOWEST, HIGHEST) for _ in range(count))
