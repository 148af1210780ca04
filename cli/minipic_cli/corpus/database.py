"""The manifest's SQLite file: opening it, its transactions, and what to say when it can't be used.

Transactions are short and never span a request, so that several `warm` may share a manifest.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minipic_cli.errors import CLIError

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION: Final = 2
_APPLICATION: Final = 0x4D504943  # "MPIC" in the file's header
_BUSY_S: Final = 30.0
_SCHEMA: Final = """
CREATE TABLE targets(id INTEGER PRIMARY KEY, model TEXT, fingerprint TEXT, salt TEXT, UNIQUE(model, fingerprint, salt));
CREATE TABLE files(target INTEGER, path TEXT, size INTEGER, mtime_ns INTEGER, chunk_tokens INTEGER,
  PRIMARY KEY(target, path)) WITHOUT ROWID;
CREATE TABLE documents(id INTEGER PRIMARY KEY, target INTEGER, source TEXT, file TEXT, name TEXT, public INTEGER,
  content BLOB, chunk_tokens INTEGER, chunks INTEGER, tokens INTEGER, blocks INTEGER, state TEXT, reason TEXT,
  warmed_at REAL, seen_at REAL, pinned INTEGER, expires_at REAL, UNIQUE(target, source));
CREATE INDEX documents_of_file ON documents(target, file);
CREATE TABLE contents(key BLOB PRIMARY KEY, tokens INTEGER, blocks INTEGER, ids BLOB) WITHOUT ROWID;
CREATE TABLE spans(document INTEGER, ordinal INTEGER, key BLOB, PRIMARY KEY(document, ordinal)) WITHOUT ROWID;
CREATE INDEX spans_of_key ON spans(key);
"""


class Database:
    """The open file; use it in a ``with`` block."""

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        """Open it, and make it if need be.

        Args:
            path: ``None``: a temporary one, gone afterwards.
            create: otherwise it must exist.

        Raises:
            CLIError: it is something else, or can't be written.
        """
        self.path = path
        if path is not None and not create and not path.exists():
            raise CLIError(f"there is no manifest {path}: `minipic warm PATH...` makes it")
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect("" if path is None else path, timeout=_BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error
        with self._clear():
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._prepare()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _prepare(self) -> None:
        if self._db.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise CLIError(
                    f"the manifest {self.path} is of version {version}, this MiniPIC reads {VERSION}: delete it, "
                    "`minipic warm` makes it anew"
                )
            return
        if self._made():
            raise CLIError(f"{self.path} is an SQLite file of something else: name another with --manifest")
        if self.path is not None:
            self._db.execute("PRAGMA journal_mode = WAL")
        with self.write():
            if not self._made():  # by another one meanwhile
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
                self._db.execute(f"PRAGMA application_id = {_APPLICATION}")

    def _made(self) -> bool:
        return bool(self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    @contextmanager
    def write(self) -> Iterator[None]:
        """A transaction, joined if one is open; several writes in one are much faster."""
        if self._db.in_transaction:
            yield
            return
        with self._clear():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def hold(self) -> None:
        """Gather the writes that follow in one transaction, until ``release``: for many small documents."""
        if not self._db.in_transaction:
            with self._clear():
                self._db.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        """Commit what ``hold`` gathered."""
        if self._db.in_transaction:
            with self._clear():
                self._db.execute("COMMIT")

    @contextmanager
    def _clear(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> CLIError:
        what = f"the manifest {self.path}"
        if isinstance(error, OSError):
            return CLIError(
                f"{what} can't be made: {error.strerror}; name another with --manifest, or use --no-manifest"
            )
        said = str(error)
        if "locked" in said or "busy" in said:
            return CLIError(f"{what} has been locked by another process for {_BUSY_S:.0f} s: try again when it is done")
        if "readonly" in said or "unable to open" in said or "disk I/O" in said:
            return CLIError(f"{what} can't be written ({said}): name another with --manifest, or use --no-manifest")
        if "full" in said:
            return CLIError(f"{what} can't grow: the disk is full")
        return CLIError(
            f"{what} is corrupt ({said}): delete it, `minipic warm` makes it anew; the cache is not affected"
        )
