"""Token ids by content: a document is tokenised once, however often it is used."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b


class TokenCache:
    """A least-recently-used cache of token ids, bounded by tokens (4 bytes each); safe to share between threads."""

    def __init__(self, max_tokens: int = 4_000_000) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """Token ids held now."""
        return self._tokens

    def get(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Ids of ``text``, from the cache or from ``encode(text)``; the list is the caller's."""
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            held = self._entries.get(key)
            if held is not None:
                self._entries.move_to_end(key)
                return held.tolist()
        ids = encode(text)
        with self._lock:
            if key not in self._entries and len(ids) <= self._max_tokens:
                self._entries[key] = array("I", ids)
                self._tokens += len(ids)
                while self._tokens > self._max_tokens:
                    self._tokens -= len(self._entries.popitem(last=False)[1])
        return ids
