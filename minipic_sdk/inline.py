"""Documents that stand in the text of messages: found there, so that each place becomes a span.

Nothing is marked and nothing changes: the text between is the message's own, and where a known document stands in it
word for word, the model reads those very words. So there is nothing that a user's text could forge.
"""

import re
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from minipic_sdk.documents import SEPARATOR, Document

SHORTEST: Final = 32  # characters; a shorter span would cost more padding than it saves

_STARTS: Final = re.compile(r"(?<!\w)\S")


class Found(NamedTuple):
    """A known document in a text."""

    start: int
    stop: int
    document: Document


class KnownTexts:
    """Documents by their text, at most ``limit`` of them: the one added longest ago goes first. Thread-safe."""

    def __init__(self, documents: Iterable[Document] = (), *, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._documents: dict[str, Document] = {}
        self._by_head: dict[str, tuple[str, ...]] = {}  # first characters -> texts, longest first
        self.add(documents)

    def add(self, documents: Iterable[Document]) -> None:
        """Know these too; documents of fewer than 32 characters are left out."""
        with self._lock:
            for document in documents:
                text = document.content.removesuffix(SEPARATOR)
                if len(text) < SHORTEST:
                    continue
                known = self._documents.pop(text, None) is not None
                self._documents[text] = document
                if not known:
                    head = text[:SHORTEST]
                    self._by_head[head] = tuple(sorted((*self._by_head.get(head, ()), text), key=len, reverse=True))
                if self._limit is not None and len(self._documents) > self._limit:
                    self._forget(next(iter(self._documents)))

    def find(self, text: str) -> list[Found]:
        """Where known documents stand in ``text``, in order; of two that overlap the first, then the longer one.

        None begins in the middle of a word.

        A blank line behind a document belongs to its span, as in ``Document.content``, unless the text ends there:
        chat templates may trim that.
        """
        found: list[Found] = []
        at = 0
        while (next_one := self._first(text, at)) is not None:
            found.append(next_one)
            at = next_one.stop
        return found

    def _first(self, text: str, at: int) -> Found | None:
        by_head = self._by_head
        if not by_head:
            return None
        for match in _STARTS.finditer(text, at):
            start = match.start()
            candidates = by_head.get(text[start : start + SHORTEST])
            if candidates is None:
                continue
            body = next((c for c in candidates if text.startswith(c, start)), "")
            document = self._documents.get(body)
            if document is None:
                continue
            stop = start + len(body)
            if text.startswith(SEPARATOR, stop) and text[stop:].strip():
                stop += len(SEPARATOR)
            return Found(start, stop, document)
        return None

    def _forget(self, text: str) -> None:
        del self._documents[text]
        head = text[:SHORTEST]
        left = tuple(t for t in self._by_head[head] if t != text)
        if left:
            self._by_head[head] = left
        else:
            del self._by_head[head]
