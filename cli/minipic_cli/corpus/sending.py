"""From spans to warm spans: sending them in batches, and noting what the server made of each document."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from minipic_cli.corpus.manifest import Manifest, Span
from minipic_cli.corpus.totals import Row, Totals
from minipic_sdk import SpansReport, SpanStatus
from minipic_sdk.wire import FIRST_SEEN, SpanQuery

BATCH_SPANS: Final = 64  # in one request: small enough that the bar moves and ^C loses little
BATCH_TOKENS: Final = 8192  # a slow server must answer within the timeout
SHOWN: Final = 100  # documents, failures: memory stays flat
_SENT: Final = 1 << 15  # spans remembered, at least, so that duplicates aren't sent again
LOST: Final = "evicted, or lost by a restart"
_WARM: Final = frozenset(("hit", "computed", "resident"))

Send = Callable[[Sequence[SpanQuery]], SpansReport]


class Outbox:
    """The spans of one run on their way to the server."""

    def __init__(
        self, manifest: Manifest, send: Send | None, totals: Totals, *, pinned: bool = False, ttl: float | None = None
    ) -> None:
        """Nothing is sent yet.

        Args:
            manifest: where to note what is warm.
            send: warms, or looks up, spans on the server; ``None``: nothing is sent.
            totals: to count in.
            pinned: whether ``send`` pins.
            ttl: seconds that it pins for; ``None``: until they are unpinned.
        """
        self.rows: list[Row] = []
        self.rejected: list[tuple[str, str]] = []
        self._manifest, self._send, self._totals = manifest, send, totals
        self._pinned, self._ttl = pinned, ttl
        self._batch: list[tuple[Row, bytes, SpanQuery]] = []
        self._batch_tokens = 0
        self._sent: set[bytes] = set()
        self._sent_before: set[bytes] = set()

    def queue(self, row: Row, span: Span, *, public: bool) -> None:
        """A span of a document is to be sent, unless the same one was."""
        if len(self._batch) >= BATCH_SPANS or self._batch_tokens >= BATCH_TOKENS:
            self.flush()  # not earlier: by now the batch's last document is complete, and settled with the others
        ordinal, key, ids, blocks = span
        tokens = len(ids)
        row.chunks += 1
        row.tokens += tokens
        row.blocks += blocks
        row.waiting += 1
        name = f"{row.name}#{ordinal + 1}" if ordinal else row.name
        mark = key + b"\1" if public else key  # public and not, it is two spans
        if mark in self._sent or mark in self._sent_before:
            self._answered(row, SpanStatus(name, "hit", None, tokens, blocks))
        else:
            self._batch.append((row, mark, SpanQuery(ids, name=name, public=public)))
            self._batch_tokens += tokens

    def close(self, row: Row) -> None:
        """All spans of a document are queued."""
        row.complete = True
        self._totals.add(row)
        if len(self.rows) < SHOWN:
            self.rows.append(row)
        self._settle((row,))

    def flush(self) -> None:
        """Send what is queued."""
        self._manifest.release()  # nobody else should wait for the server
        batch, self._batch, self._batch_tokens = self._batch, [], 0
        if not batch:
            return
        if self._send is None:
            for row, _, _ in batch:
                row.waiting -= 1
                row.counts["unknown"] = row.counts.get("unknown", 0) + 1
            return
        statuses = self._send([query for _, _, query in batch]).spans
        with self._manifest.write():
            for (row, mark, _), status in zip(batch, statuses, strict=True):
                if status.status in _WARM:
                    self._sent.add(mark)
                    if len(self._sent) == _SENT:
                        self._sent, self._sent_before = set(), self._sent
                self._answered(row, status)
            self._settle({id(row): row for row, _, _ in batch}.values())

    def _answered(self, row: Row, status: SpanStatus) -> None:
        row.waiting -= 1
        row.counts[status.status] = row.counts.get(status.status, 0) + 1
        # A restarted server knows nothing of what it had.
        lost = row.was_warm and status.status == "computed" and status.reason in (None, FIRST_SEEN)
        row.reason = row.reason or (LOST if lost else status.reason)
        row.loose = row.loose or status.pinned is False
        totals = self._totals
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
