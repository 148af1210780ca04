"""Token ids by content: a document is tokenised once, however often it is used."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import cast


class TokenCache:
    """A least-recently-used cache of token ids, bounded by tokens; safe to share between threads.

    A token takes 8 bytes, beside its text: equal ids are one object, so a hit makes none. Text of more than four
    characters a token counts as if it had a token for every four.
    """

    def __init__(self, max_tokens: int = 2_000_000) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[str, list[int]] = OrderedDict()
        self._ids: dict[int, int] = {}  # at most the vocabulary
        self._tokens = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """Token ids held now, as counted above."""
        return self._tokens

    def get(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Ids of ``text``, from the cache or from ``encode(text)``; the list is the caller's."""
        held = self._held(text)
        if held is None:
            held = encode(text)
            self._hold(text, held)
        return held

    def get_batch(self, texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
        """Ids of each text; those that the cache hasn't are encoded together."""
        found = [self._held(text) for text in texts]
        missing = [i for i, ids in enumerate(found) if ids is None]
        for i, ids in zip(missing, encode([texts[i] for i in missing]) if missing else (), strict=True):
            self._hold(texts[i], ids)
            found[i] = ids
        return cast("list[list[int]]", found)

    def _held(self, text: str) -> list[int] | None:
        with self._lock:
            held = self._entries.get(text)
            if held is None:
                return None
            self._entries.move_to_end(text)
            return held.copy()

    def _hold(self, text: str, ids: list[int]) -> None:
        with self._lock:
            if text not in self._entries and _size(text, ids) <= self._max_tokens:
                self._entries[text] = [self._ids.setdefault(i, i) for i in ids]
                self._tokens += _size(text, ids)
                while self._tokens > self._max_tokens:
                    self._tokens -= _size(*self._entries.popitem(last=False))


def _size(text: str, ids: list[int]) -> int:
    return max(len(ids), len(text) // 4)
