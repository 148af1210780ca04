"""Documents that stand in the text of messages: found there, so that each place becomes a span.

Nothing is marked and nothing changes: the text between is the message's own, and where a known document stands in it
word for word, the model reads those very words. So there is nothing that a user's text could forge.
"""

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from minipic_sdk.documents import SEPARATOR, Document

SHORTEST: Final = 32  # characters; a shorter span would cost more padding than it saves


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

        A blank line behind a document belongs to its span, as in ``Document.content``, unless the text ends there:
        chat templates may trim that.
        """
        found: list[Found] = []
        at, last = 0, len(text) - SHORTEST
        while self._by_head and at <= last:
            candidates = self._by_head.get(text[at : at + SHORTEST], ())
            body = next((c for c in candidates if text.startswith(c, at)), None)
            document = self._documents.get(body) if body is not None else None
            if body is None or document is None:
                at += 1
                continue
            stop = at + len(body)
            if text.startswith(SEPARATOR, stop) and text[stop:].strip():
                stop += len(SEPARATOR)
            found.append(Found(at, stop, document))
            at = stop
        return found

    def _forget(self, text: str) -> None:
        del self._documents[text]
        head = text[:SHORTEST]
        left = tuple(t for t in self._by_head[head] if t != text)
        if left:
            self._by_head[head] = left
        else:
            del self._by_head[head]
