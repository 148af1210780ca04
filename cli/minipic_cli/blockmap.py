"""A prompt's KV blocks in letters, one a block."""

from collections.abc import Iterator, Sequence
from typing import Final

_ROW: Final = 8  # blocks between gaps, so that they can be counted


def block_map(marks: Sequence[str], blocks: Sequence[range], width: int) -> Iterator[str]:
    """Lines such as ``   0  hAAAAAAA ABBBBBBB``: block numbers, then one mark a block.

    Args:
        marks: one letter a segment, in physical order.
        blocks: the blocks of each segment.
        width: of the output, in columns.
    """
    letters = "".join(mark * len(held) for mark, held in zip(marks, blocks, strict=True))
    groups = max(1, (width - 6) // (_ROW + 1))
    per_line = groups * _ROW
    for start in range(0, len(letters), per_line):
        line = letters[start : start + per_line]
        yield f"{start:>4}  " + " ".join(line[i : i + _ROW] for i in range(0, len(line), _ROW))
