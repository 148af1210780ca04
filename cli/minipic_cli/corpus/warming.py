"""From files to warm spans: reading, cutting, tokenising, recording and sending, one batch after another."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from minipic_cli.console import note
from minipic_cli.corpus.chunking import WINDOW, Chunk, Chunker
from minipic_cli.corpus.entry import Entry
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.reading import WHOLE, Bad, ChangedError, ReadError, Text, texts
from minipic_cli.corpus.sources import Scope, Source, Stat
from minipic_cli.corpus.totals import Row, Totals
from minipic_sdk import ModelProfile, SpansReport, SpanStatus
from minipic_sdk.keys import span_key
from minipic_sdk.wire import SpanQuery

BATCH_SPANS: Final = 64  # in one request: small enough that the bar moves and ^C loses little
AHEAD: Final = 256  # lines read and tokenised together
BATCH_TOKENS: Final = 8192  # a slow server must answer within the timeout
SHOWN: Final = 100  # documents, failures: memory stays flat
_SENT: Final = 1 << 15  # spans remembered, at least, so that duplicates aren't sent again
_WARM: Final = frozenset(("hit", "computed", "resident"))

Send = Callable[[Sequence[SpanQuery]], SpansReport]


class Warmer:
    """One run over a corpus."""

    def __init__(
        self,
        manifest: Manifest,
        profile: ModelProfile,
        send: Send | None,
        *,
        chunk_tokens: int,
        salt: str | None = None,
        encoding: str | None = None,
        advance: Callable[[int], None] = lambda _: None,
        pinned: bool = False,
        ttl: float | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            manifest: where to note what is warm.
            profile: the server's.
            send: warms, or looks up, spans on the server; ``None``: nothing is sent.
            chunk_tokens: of a chunk at most; 0: documents stay whole.
            salt: of the cache.
            encoding: of text files, where it isn't UTF-8.
            advance: told how many bytes more were read.
            pinned: whether ``send`` pins.
            ttl: seconds that it pins for; ``None``: until they are unpinned.
        """
        self.totals = Totals()
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.rejected: list[tuple[str, str]] = []
        self._manifest, self._profile, self._send = manifest, profile, send
        self._chunk_tokens, self._encoding, self._advance = chunk_tokens, encoding, advance
        self._pinned, self._ttl = pinned, ttl
        self._chunker = Chunker(profile.tokenizer.encode_batch, chunk_tokens)  # a text comes once: no cache
        self._target = manifest.target(profile.model, profile.fingerprint, salt)
        self._anchor = profile.anchor_token_ids
        self._batch: list[tuple[Row, bytes, SpanQuery]] = []
        self._batch_tokens = 0
        self._sent: set[bytes] = set()
        self._sent_before: set[bytes] = set()
        self._new_keys: set[str] = set()  # of lines read ahead, until they are recorded
        self._read = 0  # bytes of the file being read that the bar knows of
        self._since = time.time()

    @property
    def target(self) -> int:
        """Of the manifest."""
        return self._target

    def run(self, sources: Iterator[Source], within: Scope) -> None:
        """Warm everything; documents in ``within`` that are not among the sources any more are noted as vanished."""
        for source in sources:
            self._file(source)
        self._flush()
        self.totals.vanished += self._manifest.vanish(self._target, within, self._since)

    def _file(self, source: Source) -> None:
        self._read = 0
        size = 0
        try:
            stat = Stat.of(source.path.stat())
            size = stat.size
            if self._manifest.unchanged(self._target, source.key, stat, self._chunk_tokens):
                for entry in self._manifest.of_file(self._target, source.key):
                    self._again(entry)
            else:
                self._read_file(source, stat)
        except ReadError as error:
            self._fail(str(error), source)
        except OSError as error:
            self._fail(f"{source.name} can't be read: {error.strerror or error}", source)
        self._manifest.release()
        self.totals.bytes += self._read
        self._advance(size - self._read)

    def _read_file(self, source: Source, stat: Stat) -> None:
        self._manifest.begin_file(self._target, source.key)
        since, bad = time.time(), False
        for attempt in (1, 2):
            try:
                found = texts(source, self._encoding)
                for text in self._ahead(source, found) if source.format == "jsonl" else found:
                    if source.format == "jsonl":
                        self._manifest.hold()
                    if isinstance(text, Bad):
                        bad = True
                        self._fail(text.why, source)
                    else:
                        self._text(source, text, whole=stat.size <= WHOLE)
                break
            except ChangedError:
                if attempt == 2:
                    raise
                stat = Stat.of(source.path.stat())
        if not bad:
            gone = self._manifest.finish_file(self._target, source.key, stat, self._chunk_tokens, since)
            self.totals.vanished += gone

    def _ahead(self, source: Source, found: Iterator[Text | Bad]) -> Iterator[Text | Bad]:
        """The same, read some ahead so that the texts of new documents are tokenised together."""
        some: list[Text | Bad] = []
        size = 0
        try:
            for text in found:
                some.append(text)
                if isinstance(text, Text):
                    size += sum(map(len, text.pieces))
                if len(some) == AHEAD or size > WINDOW:
                    self._prepare(source, some)
                    yield from some
                    some, size = [], 0
        except ReadError:
            yield from some  # what came before it is as good as ever
            raise
        self._prepare(source, some)
        yield from some

    def _prepare(self, source: Source, some: Sequence[Text | Bad]) -> None:
        self._manifest.release()  # nobody else should wait for the tokenizer
        read = [text for text in some if isinstance(text, Text)]
        known = self._manifest.known(self._target, source.key, [text.key for text in read])
        new = [text for text in read if text.key not in known]
        self._new_keys = {text.key for text in new}
        self._chunker.prepare(("".join(text.pieces), text.title) for text in new)

    def _text(self, source: Source, text: Text, *, whole: bool) -> None:
        if text.remark is not None:
            note(text.remark)
        key = text.key
        known = None if key in self._new_keys else self._manifest.document(self._target, source.key, key)
        self._new_keys.discard(key)
        if known is not None and known.seen_at >= self._since and text.number is not None:
            key = f"{key} (line {text.number})"  # two lines of the same name
            known = self._manifest.document(self._target, source.key, key)
        digest = hashlib.sha256(f"{text.title or ''}\0{text.public}\0".encode())
        pieces = self._watched(text.pieces, digest)
        if whole or text.number is not None:
            pieces = iter(list(pieces))
            if known is not None and known.content == digest.digest() and known.chunk_tokens == self._chunk_tokens:
                self._manifest.see(known.id)
                return self._again(known)
        self._new(source, text, key, known, pieces, digest)
        return None

    def _new(
        self, source: Source, text: Text, key: str, known: Entry | None, pieces: Iterator[str], digest: Any
    ) -> None:
        change = "new" if known is None or known.state == "vanished" else "changed"
        document: int | None = None
        row = Row(0, text.name, change)
        held: list[tuple[int, bytes, list[int], int]] = []

        def record(content: bytes | None = None) -> None:
            nonlocal document
            if document is None:
                document = self._manifest.begin(
                    self._target,
                    source.key,
                    key,
                    text.name,
                    held,
                    content,
                    public=text.public,
                    chunk_tokens=self._chunk_tokens,
                )
            else:
                self._manifest.add(document, held, content)
            row.id = document
            queries = [self._query(text.name, text.public, known) for known in held]
            held.clear()
            for span_hash, query in queries:
                self._queue(row, span_hash, query)

        for ordinal, chunk in enumerate(self._chunker.chunks(pieces, text.title)):
            if len(held) == BATCH_SPANS:
                record()
            held.append(self._span(ordinal, chunk))
        record(digest.digest())
        self._close(row)

    def _again(self, entry: Entry) -> None:
        """A document with the text it had: its tokens are in the manifest."""
        row = Row(entry.id, entry.name, "unchanged", entry.state == "warm", entry.pinned)
        for span in self._manifest.spans(entry.id):
            self._queue(row, *self._query(entry.name, entry.public, span))
        self._close(row)

    def _span(self, ordinal: int, chunk: Chunk) -> tuple[int, bytes, list[int], int]:
        key = bytes.fromhex(span_key(self._profile.fingerprint, self._anchor, chunk.ids))
        return ordinal, key, chunk.ids, -(-(len(chunk.ids) + 1) // self._profile.block_size)

    def _query(self, name: str, public: bool, span: tuple[int, bytes, list[int], int]) -> tuple[bytes, SpanQuery]:
        ordinal, key, ids, _ = span
        return key, SpanQuery(ids, name=f"{name}#{ordinal + 1}" if ordinal else name, public=public)

    def _queue(self, row: Row, key: bytes, query: SpanQuery) -> None:
        if len(self._batch) >= BATCH_SPANS or self._batch_tokens >= BATCH_TOKENS:
            self._flush()  # only now: the last document of a batch is complete by now, and settled with the others
        ids = query.token_ids or ()
        blocks = -(-(len(ids) + 1) // self._profile.block_size)
        row.chunks += 1
        row.tokens += len(ids)
        row.blocks += blocks
        self.totals.chunks += 1
        self.totals.tokens += len(ids)
        self.totals.blocks += blocks
        row.waiting += 1
        mark = _mark(key, query)
        if mark in self._sent or mark in self._sent_before:
            return self._answered(row, SpanStatus(query.name or "", "hit", None, len(ids), blocks))
        self._batch.append((row, key, query))
        self._batch_tokens += len(ids)
        return None

    def _flush(self) -> None:
        self._manifest.release()  # nobody else should wait for the server
        batch, self._batch, self._batch_tokens = self._batch, [], 0
        if not batch:
            return
        if self._send is None:
            statuses = [SpanStatus(q.name or "", "absent", None, 0, 0) for _, _, q in batch]
        else:
            statuses = self._send([query for _, _, query in batch]).spans
        with self._manifest.write():
            for (row, key, query), status in zip(batch, statuses, strict=True):
                if status.status in _WARM:
                    self._sent.add(_mark(key, query))
                    if len(self._sent) == _SENT:
                        self._sent, self._sent_before = set(), self._sent
                self._answered(row, status)
            self._settle({id(row): row for row, _, _ in batch}.values())

    def _answered(self, row: Row, status: SpanStatus) -> None:
        row.waiting -= 1
        row.counts[status.status] = row.counts.get(status.status, 0) + 1
        row.reason = row.reason or status.reason
        row.loose = row.loose or status.pinned is False
        totals = self.totals
        if status.status in ("hit", "resident"):
            totals.hit += 1
        elif status.status == "computed":
            totals.computed += 1
            totals.refilled += row.was_warm
        elif status.status == "rejected":
            totals.rejected += 1
            row.reason = status.reason
            if len(self.rejected) < SHOWN:
                self.rejected.append((status.name, status.reason or ""))

    def _close(self, row: Row) -> None:
        row.complete = True
        totals = self.totals
        totals.documents += 1
        setattr(totals, row.change, getattr(totals, row.change) + 1)
        if len(self.rows) < SHOWN:
            self.rows.append(row)
        self._settle((row,))

    def _settle(self, rows: Iterable[Row]) -> None:
        """Note those that are complete and answered."""
        done = [row for row in rows if row.complete and row.counts and not row.waiting and self._news(row)]
        if done:
            self._manifest.settle(
                [(r.id, "rejected", r.reason) if "rejected" in r.counts else (r.id, "warm", None) for r in done]
            )
        for row in done:
            if row.loose or "rejected" in row.counts:
                self._manifest.unpin(row.id)
            elif self._pinned:
                self._manifest.pin(row.id, self._ttl)

    def _news(self, row: Row) -> bool:
        """Whether there is anything to note of it."""
        changed = not row.was_warm or "computed" in row.counts or "rejected" in row.counts
        return changed or self._pinned or row.was_pinned

    def _watched(self, pieces: Iterable[str], digest: Any) -> Iterator[str]:
        """Pieces, hashed and counted on the way."""
        for piece in pieces:
            digest.update(piece.encode("utf-8", "surrogatepass"))
            self._read += len(piece)
            self._advance(len(piece))
            yield piece

    def _fail(self, why: str, source: Source) -> None:
        if source.named:
            self.totals.failed += 1
            if len(self.failures) < SHOWN:
                self.failures.append(why)
        else:
            self.totals.left_out += 1
            note(f"left out: {why}")


def _mark(key: bytes, query: SpanQuery) -> bytes:
    """What a span is remembered by: public and not, it is two spans."""
    return key + b"\1" if query.public else key
