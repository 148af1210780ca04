"""Which cached blocks unfinished requests want."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

Chains = Sequence[Sequence[bytes]]  # of each span of a request: hashes of its blocks


class Wanted:
    """Blocks of the spans of all unfinished requests; counted when somebody asks, and nobody does for a lone hit."""

    def __init__(self) -> None:
        self._requests: dict[str, Chains] = {}
        self._uncounted: dict[str, Chains] = {}
        self._counts: Counter[bytes] = Counter()

    def __bool__(self) -> bool:
        """Whether there is an unfinished request with spans."""
        return bool(self._requests)

    def __contains__(self, block: bytes) -> bool:
        """Whether an unfinished request wants this block."""
        if self._uncounted:
            for chains in self._uncounted.values():
                self._counts.update(chain.from_iterable(chains))
            self._uncounted.clear()
        return block in self._counts

    def add(self, request_id: str, chains: Chains) -> None:
        """A request has come."""
        self._requests[request_id] = self._uncounted[request_id] = chains

    def remove(self, request_id: str) -> None:
        """It has finished."""
        chains = self._requests.pop(request_id)
        if not self._requests:
            self._uncounted.clear()
            self._counts.clear()
        elif self._uncounted.pop(request_id, None) is None:
            counts = self._counts
            for block in chain.from_iterable(chains):
                left = counts[block] - 1
                if left:
                    counts[block] = left
                else:
                    del counts[block]
