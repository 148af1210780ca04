"""What a run of ``minipic warm`` did, in all and document by document."""

from dataclasses import dataclass, field, fields


@dataclass
class Totals:
    """What a run did."""

    documents: int = 0
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    vanished: int = 0
    failed: int = 0  # could not be read
    left_out: int = 0  # files of directories that are no documents
    chunks: int = 0
    tokens: int = 0
    blocks: int = 0
    hit: int = 0  # chunks that were cached, or the same as another one
    computed: int = 0
    refilled: int = 0  # of the computed ones: had been warm and were gone
    rejected: int = 0
    bytes: int = 0  # read

    def add(self, row: "Row") -> None:
        """A document is complete."""
        self.documents += 1
        setattr(self, row.change, getattr(self, row.change) + 1)
        self.chunks += row.chunks
        self.tokens += row.tokens
        self.blocks += row.blocks

    def to_json(self) -> dict[str, int]:
        """By name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _nothing() -> dict[str, int]:
    return {}  # called several times faster than dict[str, int] is


@dataclass
class Row:
    """One document of this run, as it is shown."""

    id: int
    name: str
    change: str  # "new" | "changed" | "unchanged"
    was_warm: bool = False
    was_pinned: bool = False
    loose: bool = False  # the server says that a chunk is not pinned
    chunks: int = 0
    tokens: int = 0
    blocks: int = 0
    waiting: int = 0  # chunks that are not answered yet
    complete: bool = False  # all chunks are known
    counts: dict[str, int] = field(default_factory=_nothing)
    reason: str | None = None

    @property
    def status(self) -> str:
        """The worst of its chunks' statuses."""
        order = ("rejected", "computed", "unknown", "absent", "partial", "hit", "resident")
        return next((s for s in order if self.counts.get(s)), "")
