"""From files to spans: reading, cutting, tokenising and recording, one document after another."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from minipic_cli.console import note
from minipic_cli.corpus.chunking import WINDOW, Chunk, Chunker
from minipic_cli.corpus.entry import Entry
from minipic_cli.corpus.manifest import Manifest, Span
from minipic_cli.corpus.reading import WHOLE, Bad, ChangedError, ReadError, Text, texts
from minipic_cli.corpus.sending import BATCH_SPANS, SHOWN, Outbox, Send
from minipic_cli.corpus.sources import Scope, Source, Stat
from minipic_cli.corpus.totals import Row, Totals
from minipic_sdk import ModelProfile
from minipic_sdk.keys import span_key

AHEAD: Final = 256  # lines read and tokenised together


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
        self.failures: list[str] = []
        self.outbox = Outbox(manifest, send, self.totals, pinned=pinned, ttl=ttl)
        self._manifest, self._profile = manifest, profile
        self._chunk_tokens, self._encoding, self._advance = chunk_tokens, encoding, advance
        self._chunker = Chunker(profile.tokenizer.encode_batch, chunk_tokens)  # a text comes once: no cache
        self._target = manifest.target(profile.model, profile.fingerprint, salt)
        self._anchor = profile.anchor_token_ids
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
        self.outbox.flush()
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
        held: list[Span] = []

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
            for span in held:
                self.outbox.queue(row, span, public=text.public)
            held.clear()

        for ordinal, chunk in enumerate(self._chunker.chunks(pieces, text.title)):
            if len(held) == BATCH_SPANS:
                record()
            held.append(self._span(ordinal, chunk))
        record(digest.digest())
        self.outbox.close(row)

    def _again(self, entry: Entry) -> None:
        """A document with the text it had: its tokens are in the manifest."""
        row = Row(entry.id, entry.name, "unchanged", entry.state == "warm", entry.pinned)
        for span in self._manifest.spans(entry.id):
            self.outbox.queue(row, span, public=entry.public)
        self.outbox.close(row)

    def _span(self, ordinal: int, chunk: Chunk) -> Span:
        key = bytes.fromhex(span_key(self._profile.fingerprint, self._anchor, chunk.ids))
        return ordinal, key, chunk.ids, -(-(len(chunk.ids) + 1) // self._profile.block_size)

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
