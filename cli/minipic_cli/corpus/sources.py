"""What ``minipic warm`` is pointed at: files, directories, globs and stdin, one source at a time."""

import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from minipic_cli.errors import CLIError, UsageError

Format = Literal["text", "markdown", "html", "pdf", "jsonl"]

FORMATS: Final[dict[str, Format]] = {
    ".txt": "text",
    ".text": "text",
    ".rst": "markdown",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
STDIN: Final = "-"
_COPY: Final = 1 << 20


@dataclass(frozen=True)
class Stat:
    """What tells a changed file from an unchanged one."""

    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stat":
        """From the system's answer."""
        return cls(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Source:
    """A file to read."""

    path: Path
    key: str  # in the manifest: the absolute path
    name: str  # as the user wrote it
    format: Format
    named: bool  # not found in a directory: it must be usable


@dataclass(frozen=True)
class Scope:
    """What the paths cover: a document of it that the manifest knows and the disk lacks has vanished."""

    keys: tuple[str, ...]  # absolute paths of files and directories

    def covers(self, file: str) -> bool:
        """Whether an absolute path is named, or lies in a directory that is."""
        return any(file == key or file.startswith(key.rstrip(os.sep) + os.sep) for key in self.keys)


def expand(paths: Sequence[str]) -> list[str]:
    """Globs replaced by what they match, sorted; a path that exists is never a glob.

    Raises:
        UsageError: a path doesn't exist, or a glob matches nothing.
    """
    out: list[str] = []
    for path in paths:
        if path == STDIN or os.path.lexists(path):
            out.append(path)
        elif glob.has_magic(path):
            found = sorted(glob.glob(path, recursive=True))
            if not found:
                raise UsageError(f"{path} matches nothing")
            out += found
        else:
            raise UsageError(f"{path} does not exist")
    if out.count(STDIN) > 1:
        raise UsageError("- (stdin) can be read once only")
    return out


def scope(paths: Iterable[str]) -> Scope:
    """What expanded paths cover."""
    return Scope(tuple(os.path.abspath(p) for p in paths if p != STDIN))


def walk(paths: Iterable[str], forced: Format | None = None, others: dict[str, int] | None = None) -> Iterator[Source]:
    """Every file, in the order given; directories in alphabetical order, hidden and foreign files left out.

    Args:
        paths: expanded, without ``-``.
        forced: format of named files, whatever their suffix says.
        others: to count foreign files in, by suffix.
    """
    for path in paths:
        if os.path.isdir(path):
            yield from _in_directory(path, {} if others is None else others)
        else:
            yield _source(Path(path), forced or FORMATS.get(Path(path).suffix.lower(), "text"), named=True)


def size_of(paths: Iterable[str]) -> int:
    """Bytes of all files, for the progress bar; what can't be read counts nothing."""
    total = 0
    for source in walk(paths):
        try:
            total += source.path.stat().st_size
        except OSError:
            continue
    return total


def of_stdin(format: Format | None) -> tuple[Source, "tempfile._TemporaryFileWrapper[bytes]"]:
    """Stdin, copied into a temporary file so that it can be hashed and read like any other; close that when done."""
    held = tempfile.NamedTemporaryFile(prefix="minipic-stdin-")
    digest = hashlib.sha256()
    while data := sys.stdin.buffer.read(_COPY):
        digest.update(data)
        held.write(data)
    held.flush()
    name = f"stdin:{digest.hexdigest()[:12]}"
    return Source(Path(held.name), name, name, format or "text", named=True), held


def _in_directory(folder: str, others: dict[str, int]) -> Iterator[Source]:
    def refuse(error: OSError) -> None:
        raise CLIError(f"can't read {error.filename}: {error.strerror}") from error

    for at, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            suffix = os.path.splitext(name)[1].lower()
            if format := FORMATS.get(suffix):
                yield _source(Path(at, name), format, named=False)
            else:
                others[suffix] = others.get(suffix, 0) + 1


def _source(path: Path, format: Format, *, named: bool) -> Source:
    return Source(path, os.path.abspath(path), str(path), format, named)
