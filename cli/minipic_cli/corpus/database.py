"""The manifest's SQLite file: opening it, its transactions, and what to say when it can't be used.

Transactions are short and never span a request, so that several `warm` may share a manifest.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from minipic_cli.console import note
from minipic_cli.errors import CLIError

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION: Final = 3
_APPLICATION: Final = 0x4D504943  # "MPIC" in the file's header
_BUSY_S: Final = 30.0
_JOINED: Final = nullcontext()
_SCHEMA: Final = """
CREATE TABLE targets(id INTEGER PRIMARY KEY, model TEXT, fingerprint TEXT, salt TEXT, UNIQUE(model, fingerprint, salt));
CREATE TABLE files(id INTEGER PRIMARY KEY, target INTEGER, path TEXT, size INTEGER, mtime_ns INTEGER,
  chunk_tokens INTEGER, UNIQUE(path, target));
CREATE TABLE documents(id INTEGER PRIMARY KEY, file INTEGER, label TEXT, name TEXT, public INTEGER, content BLOB,
  chunk_tokens INTEGER, chunks INTEGER, tokens INTEGER, blocks INTEGER, state TEXT, reason TEXT, warmed_at REAL,
  seen_at REAL, pinned INTEGER, expires_at REAL, UNIQUE(file, label));
CREATE INDEX documents_of_file ON documents(file);
CREATE TABLE spans(document INTEGER, ordinal INTEGER, key BLOB, tokens INTEGER, blocks INTEGER, ids BLOB,
  PRIMARY KEY(document, ordinal)) WITHOUT ROWID;
"""


class Database:
    """The open file; use it in a ``with`` block."""

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        """Open it, and make it if need be.

        Args:
            path: ``None``: a temporary one, gone afterwards.
            create: otherwise it must exist, in this version's format.

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
            self._prepare(create=create)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.Error):  # from within a transaction that was joined
            raise self._error(error) from error

    def _prepare(self, *, create: bool) -> None:
        version = self._version()
        if version == VERSION:
            return
        if version > VERSION:
            raise CLIError(
                f"the manifest {self.path} is of version {version}, this MiniPIC reads {VERSION}: update MiniPIC, or name "
                "another with --manifest"
            )
        if version and not create:
            raise CLIError(f"the manifest {self.path} is of an older MiniPIC: `minipic warm PATH...` makes it anew")
        if self.path is not None:
            self._db.execute("PRAGMA journal_mode = WAL")
        with self.write():
            if self._version() == VERSION:  # made by another one meanwhile
                return
            for (table,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                self._db.execute(f"DROP TABLE {table}")
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        if version:
            note(f"the manifest {self.path} was of an older MiniPIC: it is begun afresh, so everything is read again")

    def _version(self) -> int:
        """Of the format; 0: nothing is there yet."""
        if self._db.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
            return self._db.execute("PRAGMA user_version").fetchone()[0]
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise CLIError(f"{self.path} is an SQLite file of something else: name another with --manifest")
        return 0

    def write(self) -> AbstractContextManager[None]:
        """A transaction, joined if one is open; several writes in one are much faster."""
        return _JOINED if self._db.in_transaction else self._transaction()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._clear():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._end("ROLLBACK")
                raise
            self._end("COMMIT")

    def hold(self) -> None:
        """Gather the writes that follow in one transaction, until ``release``: for many small documents."""
        if not self._db.in_transaction:
            with self._clear():
                self._db.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        """Commit what ``hold`` gathered."""
        if self._db.in_transaction:
            with self._clear():
                self._end("COMMIT")

    def _end(self, how: str) -> None:
        self._db.execute(how)

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
