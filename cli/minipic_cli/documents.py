"""Documents of a command, as `minipic warm` reads them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from minipic_cli.console import note
from minipic_cli.corpus import settings
from minipic_cli.corpus.reading import Bad, ReadError, texts
from minipic_cli.corpus.sources import FORMATS, STDIN, Format, Source, expand, of_stdin, walk
from minipic_cli.errors import CLIError
from minipic_sdk import Document


def chosen_documents(
    docs: Sequence[str] | None, more: Sequence[str] | None, format: str | None, encoding: str | None
) -> list[Document]:
    """Documents of a command's options; raises as ``read_documents``."""
    settings.check_encoding(encoding)
    return read_documents([*(docs or ()), *(more or ())], settings.format_of(format), encoding)


def read_documents(
    paths: Sequence[str | Path], format: Format | None = None, encoding: str | None = None
) -> list[Document]:
    """Documents of files, directories in alphabetical order, globs and stdin (``-``), in the order given.

    What was named must be usable; in a directory, files that aren't are left out with a note.

    Args:
        paths: as on the command line.
        format: of named files and stdin; by default by suffix.
        encoding: of text files; by default UTF-8, else it is guessed.

    Raises:
        UsageError: a path doesn't exist.
        CLIError: a named file can't be used, or there is no document at all.
    """
    documents: list[Document] = []
    for path in expand([os.fspath(p) for p in paths]):
        source, held = of_stdin(format) if path == STDIN else (None, nullcontext())
        with held:
            found = [d for s in ([source] if source else walk([path], format)) for d in _of_source(s, encoding)]
        if not found:
            raise CLIError(f"{path} has no documents: MiniPIC reads {', '.join(sorted(FORMATS))}")
        documents += found
    return documents


def _of_source(source: Source, encoding: str | None) -> Iterator[Document]:
    try:
        for text in texts(source, encoding):
            if not isinstance(text, Bad):
                if text.remark is not None:
                    note(text.remark)
                yield Document("".join(text.pieces), text.title, text.name, text.public)
            elif source.named:
                raise CLIError(text.why)
            else:
                note(f"left out: {text.why}")
    except ReadError as error:
        if source.named:
            raise
        note(f"left out: {error}")
