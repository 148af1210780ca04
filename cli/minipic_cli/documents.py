"""Documents from files: text and Markdown, UTF-8."""

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from minipic_cli.console import note
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import Document

TEXT_SUFFIXES: Final = frozenset((".txt", ".text", ".md", ".markdown", ".rst"))
_SNIFFED: Final = 8192  # bytes looked at to tell binary files from text


class Skipped(NamedTuple):
    """A file of a directory that is no document."""

    path: Path
    why: str


def read_documents(paths: Sequence[Path]) -> list[Document]:
    """One document a file, in the order given; directories are walked in alphabetical order.

    A file that was named must be usable; in a directory, files that aren't are left out with a note.

    Raises:
        UsageError: a path doesn't exist.
        CLIError: a named file can't be used, or there is no document at all.
    """
    documents: list[Document] = []
    for path in paths:
        if path.is_dir():
            found = list(_of_directory(path))
            documents += [d for d in found if isinstance(d, Document)]
            for skipped in (s for s in found if isinstance(s, Skipped)):
                note(f"left out {skipped.path}: {skipped.why}")
            if not any(isinstance(d, Document) for d in found):
                raise CLIError(f"{path} has no documents: MiniPIC reads {', '.join(sorted(TEXT_SUFFIXES))}")
        elif not path.exists():
            raise UsageError(f"{path} does not exist")
        else:
            documents.append(_read(path))
    return documents


def _of_directory(directory: Path) -> Iterator[Document | Skipped]:
    def refuse(error: OSError) -> None:
        raise CLIError(f"can't read {error.filename}: {error.strerror}") from error

    for folder, subfolders, files in os.walk(directory, onerror=refuse):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or path.suffix.lower() not in TEXT_SUFFIXES:
                continue
            try:
                yield _read(path)
            except CLIError as error:
                yield Skipped(path, str(error).removeprefix(f"{path} "))


def _read(path: Path) -> Document:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CLIError(f"{path} can't be read: {error.strerror}") from error
    if b"\0" in data[:_SNIFFED] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise CLIError(f"{path} is a binary file: give text or Markdown")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CLIError(
            f"{path} is not valid UTF-8 (byte {data[error.start]:#04x} at offset {error.start}): "
            f"convert it, for example with iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise CLIError(f"{path} is empty")
    return Document(text, name=str(path))
