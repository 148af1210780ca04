"""What the manifest knows of one document."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

COLUMNS: Final = (
    "d.id, f.path || d.label, f.path, d.name, d.public, d.content, d.chunk_tokens, d.chunks, d.tokens, d.blocks, d.state, "
    "d.reason, d.warmed_at, d.seen_at, d.pinned, d.expires_at, t.model, t.fingerprint, t.salt"
)
DOCUMENTS: Final = f"SELECT {COLUMNS} FROM documents d JOIN files f ON f.id = d.file JOIN targets t ON t.id = f.target"


@dataclass(frozen=True)
class Entry:
    """One document of the manifest."""

    id: int
    source: str  # absolute path; of a JSON line with its name behind "#"
    file: str
    name: str
    public: bool
    content: bytes | None  # digest of the text; None while it isn't read to its end
    chunk_tokens: int
    chunks: int
    tokens: int
    blocks: int
    state: str  # "read" | "warm" | "rejected" | "vanished"
    reason: str | None  # why it was rejected
    warmed_at: float | None  # seconds since 1970
    seen_at: float
    pinned: bool
    expires_at: float | None
    model: str
    fingerprint: str
    salt: str | None  # digest

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        body = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("id", "seen_at", "public")}
        return {**body, "content": self.content.hex() if self.content else None}


def salt_digest(salt: str | None) -> str | None:
    """What the manifest keeps of a cache salt, which is a secret."""
    return None if salt is None else hashlib.sha256(b"minipic salt\0" + salt.encode()).hexdigest()[:12]


def default_path() -> Path:
    """The user's manifest."""
    import platformdirs

    return platformdirs.user_data_path("minipic") / "corpus.db"
