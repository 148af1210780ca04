"""What was warmed, in an SQLite file: enough to skip what hasn't changed and to refill a server without the texts.

It holds the token ids of the documents, hence their text in effect; of a cache salt it holds a digest.
"""

import struct
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from minipic_cli.corpus.database import Database
from minipic_cli.corpus.entry import DOCUMENTS, Entry, salt_digest
from minipic_cli.corpus.sources import Scope, Stat

_SETTLED_NS: Final = 2_000_000_000  # a file touched this shortly before it was read may change within one mtime tick
_NEW: Final = (
    "INSERT INTO documents(file, label, name, public, chunk_tokens, seen_at, chunks, tokens, blocks, content, state, "
    "pinned) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'read', 0) ON CONFLICT DO NOTHING"
)
_ANEW: Final = (
    "UPDATE documents SET name = ?, public = ?, chunk_tokens = ?, seen_at = ?, chunks = ?, tokens = ?, blocks = ?, "
    "content = ?, state = 'read', pinned = 0, reason = NULL, expires_at = NULL"
)
_TOGETHER: Final = 256  # spans written at once, at most: memory stays flat

Span = tuple[int, bytes, list[int], int]
"""A chunk of a document: ordinal, key, ids, blocks."""


class Manifest(Database):
    """Documents, their spans, and the files they came from."""

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        """Open it, as any ``Database``."""
        self._files: dict[tuple[int, str], int] = {}  # ids by target and path, valid in the open transaction
        self._spans: list[tuple[Any, ...]] = []  # rows to write together, in it too
        super().__init__(path, create=create)

    def target(self, model: str, fingerprint: str, salt: str | None) -> int:
        """The id of what spans are computed for."""
        row = (model, fingerprint, salt_digest(salt) or "")
        with self.write():
            self._db.execute("INSERT OR IGNORE INTO targets(model, fingerprint, salt) VALUES(?, ?, ?)", row)
            found = self._db.execute("SELECT id FROM targets WHERE model = ? AND fingerprint = ? AND salt = ?", row)
            return found.fetchone()[0]

    def unchanged(self, target: int, path: str, stat: Stat, chunk_tokens: int) -> bool:
        """Whether a file is as it was when it was last read; its documents then count as seen."""
        as_read = "target = ? AND path = ? AND size = ? AND mtime_ns = ? AND chunk_tokens = ?"
        with self._clear():
            found = self._db.execute(
                f"SELECT id FROM files WHERE {as_read}", (target, path, stat.size, stat.mtime_ns, chunk_tokens)
            ).fetchone()
            if found is None:
                return False
            unread = "SELECT count(*) FROM documents WHERE file = ? AND content IS NULL"
            if self._db.execute(unread, found).fetchone()[0]:
                return False
        with self.write():
            self._db.execute("UPDATE documents SET seen_at = ? WHERE file = ?", (time.time(), *found))
        return True

    def of_file(self, target: int, path: str) -> Iterator[Entry]:
        """The documents of a file that are still there."""
        return (entry for entry in self._in_file(self._file(target, path)) if entry.state != "vanished")

    def begin_file(self, target: int, path: str) -> None:
        """It is being read: until ``finish_file`` it counts as changed."""
        with self.write():
            self._db.execute("UPDATE files SET size = NULL WHERE target = ? AND path = ?", (target, path))

    def finish_file(self, target: int, path: str, stat: Stat, chunk_tokens: int, since: float) -> int:
        """It was read to its end; returns how many documents it has no longer."""
        settled = time.time_ns() - stat.mtime_ns > _SETTLED_NS
        with self.write():
            file = self._file(target, path)
            if settled and file is not None:
                row = (stat.size, stat.mtime_ns, chunk_tokens, file)
                self._db.execute("UPDATE files SET size = ?, mtime_ns = ?, chunk_tokens = ? WHERE id = ?", row)
            return self._vanish(file, since)

    def known(self, target: int, path: str, sources: Sequence[str]) -> set[str]:
        """Those of some sources in a file, at most a few hundred, that there are documents of."""
        query = f"SELECT label FROM documents WHERE file = ? AND label IN ({','.join('?' * len(sources))})"
        with self._clear():
            labels = (source.removeprefix(path) for source in sources)
            return {path + label for (label,) in self._db.execute(query, (self._file(target, path), *labels))}

    def document(self, target: int, path: str, source: str) -> Entry | None:
        """What is known of a document."""
        found = self._select(
            "WHERE f.target = ? AND f.path = ? AND d.label = ?", (target, path, source.removeprefix(path))
        )
        return found[0] if found else None

    def begin(
        self,
        target: int,
        path: str,
        source: str,
        name: str,
        spans: Sequence[Span],
        content: bytes | None,
        *,
        public: bool,
        chunk_tokens: int,
    ) -> int:
        """A document is read anew, with its first chunks as in ``add``; what it was is forgotten. Returns its id."""
        label = source.removeprefix(path)
        fresh = (name, public, chunk_tokens, time.time(), *_sums(spans), content)
        with self.write():
            file = self._file(target, path)
            if file is None:
                self._db.execute("INSERT INTO files(target, path) VALUES(?, ?)", (target, path))
                file = self._file(target, path)
            made = self._db.execute(_NEW, (file, label, *fresh))
            if made.rowcount:
                assert made.lastrowid is not None
                document = made.lastrowid
            else:
                key = "file = ? AND label = ?"
                self._db.execute(f"{_ANEW} WHERE {key}", (*fresh, file, label))
                document = self._db.execute(f"SELECT id FROM documents WHERE {key}", (file, label)).fetchone()[0]
                self._put()
                self._db.execute("DELETE FROM spans WHERE document = ?", (document,))
            self._insert(document, spans)
            return document

    def add(self, document: int, spans: Sequence[Span], content: bytes | None = None) -> None:
        """Record further chunks; and with the last ones the digest of the document's text."""
        with self.write():
            self._insert(document, spans)
            self._db.execute(
                "UPDATE documents SET chunks = chunks + ?, tokens = tokens + ?, blocks = blocks + ?, content = ? "
                "WHERE id = ?",
                (*_sums(spans), content, document),
            )

    def see(self, document: int) -> None:
        """A document is still there, with the same text."""
        with self.write():
            self._db.execute(
                "UPDATE documents SET seen_at = ?, state = CASE state WHEN 'vanished' THEN 'read' ELSE state END WHERE id = ?",
                (time.time(), document),
            )

    def settle(self, documents: Iterable[tuple[int, str, str | None]]) -> None:
        """What the server made of documents: id, state, and the reason of a rejection."""
        now = time.time()
        with self.write():
            self._db.executemany(
                "UPDATE documents SET state = ?2, reason = ?3, warmed_at = CASE ?2 WHEN 'warm' THEN ?4 ELSE warmed_at END "
                "WHERE id = ?1",
                [(*row, now) for row in documents],
            )

    def pin(self, document: int, ttl: float | None) -> None:
        """A document is pinned: for so many seconds, or until it is unpinned."""
        until = None if ttl is None else time.time() + ttl
        with self.write():
            self._db.execute("UPDATE documents SET pinned = 1, expires_at = ? WHERE id = ?", (until, document))

    def unpin(self, document: int) -> None:
        """A document is pinned no longer."""
        with self.write():
            self._db.execute("UPDATE documents SET pinned = 0, expires_at = NULL WHERE id = ?", (document,))

    def vanish(self, target: int, within: Scope, since: float) -> int:
        """Note the documents in a scope that the run since then didn't see; how many are new among them."""
        count = 0
        with self._clear():
            known = self._db.execute(
                "SELECT DISTINCT f.id, f.path FROM files f JOIN documents d ON d.file = f.id "
                "WHERE f.target = ? AND d.seen_at < ? AND d.state != 'vanished'",
                (target, since),
            ).fetchall()
        for file, path in known:
            if within.covers(path):
                with self.write():
                    self._db.execute("UPDATE files SET size = NULL WHERE id = ?", (file,))
                    count += self._vanish(file, since)
        return count

    def _vanish(self, file: int | None, since: float) -> int:
        query = "UPDATE documents SET state = 'vanished' WHERE state != 'vanished' AND file = ? AND seen_at < ?"
        return self._db.execute(query, (file, since)).rowcount

    def spans(self, document: int) -> Iterator[Span]:
        """Chunks of a document in order."""
        self._put()
        at = -1
        while True:  # a few at a time: a document may be large, and nobody should wait for an open cursor
            with self._clear():
                rows = self._db.execute(
                    "SELECT ordinal, key, tokens, ids, blocks FROM spans WHERE document = ? AND ordinal > ? "
                    "ORDER BY ordinal LIMIT 64",
                    (document, at),
                ).fetchall()
            for ordinal, key, tokens, packed, blocks in rows:
                if len(packed) not in (2 * tokens, 4 * tokens):
                    raise self._error(ValueError(f"{len(packed)} bytes for a span of {tokens} tokens"))
                ids = array("H" if len(packed) == 2 * tokens else "I", packed).tolist()
                yield ordinal, key, ids, blocks
                at = ordinal
            if not rows:
                return

    def entries(self) -> Iterator[Entry]:
        """All documents: files by path, the documents of one as they were first read."""
        last = ("", 0)
        while True:
            with self._clear():
                files = self._db.execute(
                    "SELECT path, target, id FROM files WHERE (path, target) > (?, ?) ORDER BY path, target LIMIT 256",
                    last,
                ).fetchall()
            for *_, file in files:
                yield from self._in_file(file)
            if not files:
                return
            last = files[-1][:2]

    def remove(self, entry: Entry) -> None:
        """Forget a document."""
        with self.write():
            self._put()
            self._files.clear()
            self._db.execute("DELETE FROM spans WHERE document = ?", (entry.id,))
            found = self._db.execute("SELECT file FROM documents WHERE id = ?", (entry.id,)).fetchall()
            self._db.execute("DELETE FROM documents WHERE id = ?", (entry.id,))
            self._db.executemany("UPDATE files SET size = NULL WHERE id = ?", found)
            self._db.executemany(
                "DELETE FROM files WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM documents WHERE file = ?1)", found
            )

    def distinct(self, target: int) -> tuple[int, int]:
        """Tokens and blocks of what is there, each content counted once, without what vanished."""
        with self._clear():
            row = self._db.execute(
                "SELECT sum(tokens), sum(blocks) FROM (SELECT s.tokens, s.blocks FROM files f JOIN documents d "
                "ON d.file = f.id JOIN spans s ON s.document = d.id WHERE f.target = ? AND d.state != 'vanished' "
                "GROUP BY s.key)",
                (target,),
            ).fetchone()
        return row[0] or 0, row[1] or 0

    def _insert(self, document: int, spans: Sequence[Span]) -> None:
        self._spans += [(document, ordinal, key, len(ids), blocks, _packed(ids)) for ordinal, key, ids, blocks in spans]
        if len(self._spans) >= _TOGETHER:
            self._put()

    def _put(self) -> None:
        if not self._spans:
            return
        spans, self._spans = self._spans, []
        self._db.executemany("INSERT OR REPLACE INTO spans VALUES(?, ?, ?, ?, ?, ?)", spans)

    def _end(self, how: str) -> None:
        if how == "COMMIT":
            self._put()
        self._spans.clear()
        self._files.clear()
        super()._end(how)

    def _file(self, target: int, path: str) -> int | None:
        key = (target, path)
        if key in self._files:
            return self._files[key]
        with self._clear():
            found = self._db.execute("SELECT id FROM files WHERE target = ? AND path = ?", key).fetchone()
        if found is None:
            return None
        if self._db.in_transaction:
            self._files[key] = found[0]
        return found[0]

    def _in_file(self, file: int | None) -> Iterator[Entry]:
        """The documents of a file, a few at a time."""
        last = 0
        while found := self._select("WHERE d.file = ? AND d.id > ? ORDER BY d.id LIMIT 256", (file, last)):
            yield from found
            last = found[-1].id

    def _select(self, where: str, values: tuple[Any, ...]) -> list[Entry]:
        with self._clear():
            rows = self._db.execute(f"{DOCUMENTS} {where}", values).fetchall()
        made = (dict(zip(Entry.__dataclass_fields__, row, strict=True)) for row in rows)
        return [
            Entry(**{**m, "public": bool(m["public"]), "pinned": bool(m["pinned"]), "salt": m["salt"] or None})
            for m in made
        ]


def _sums(spans: Sequence[Span]) -> tuple[int, int, int]:
    """Chunks, tokens, blocks."""
    tokens = blocks = 0
    for span in spans:
        tokens += len(span[2])
        blocks += span[3]
    return len(spans), tokens, blocks


def _packed(ids: list[int]) -> bytes:
    try:
        return struct.pack(f"{len(ids)}H", *ids)  # array("H", ids) takes twice as long
    except struct.error:  # a vocabulary of more than 65,536
        return array("I", ids).tobytes()
