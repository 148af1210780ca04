"""Token ids by content: a document is tokenised once, however often it is used."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import cast


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
        key = _key(text)
        held = self._held(key)
        if held is None:
            held = encode(text)
            self._hold(key, held)
        return held

    def get_batch(self, texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
        """Ids of each text; those that the cache hasn't are encoded together."""
        keys = [_key(text) for text in texts]
        found = [self._held(key) for key in keys]
        missing = [i for i, ids in enumerate(found) if ids is None]
        for i, ids in zip(missing, encode([texts[i] for i in missing]) if missing else (), strict=True):
            self._hold(keys[i], ids)
            found[i] = ids
        return cast("list[list[int]]", found)

    def _held(self, key: bytes) -> list[int] | None:
        with self._lock:
            held = self._entries.get(key)
            if held is None:
                return None
            self._entries.move_to_end(key)
            return held.tolist()

    def _hold(self, key: bytes, ids: list[int]) -> None:
        with self._lock:
            if key not in self._entries and len(ids) <= self._max_tokens:
                self._entries[key] = array("I", ids)
                self._tokens += len(ids)
                while self._tokens > self._max_tokens:
                    self._tokens -= len(self._entries.popitem(last=False)[1])


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
