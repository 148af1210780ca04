"""Texts of a source: decoded, in pieces, so that a file of any size takes little memory."""

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, cast

from minipic_cli.corpus.encoding import guess
from minipic_cli.corpus.sources import Source, Stat
from minipic_cli.errors import CLIError

WHOLE: Final = 16 << 20  # bytes; a larger file is read in pieces, and must be UTF-8 or say what it is with a BOM
PIECE: Final = 1 << 20
MAX_LINE: Final = 64 << 20  # bytes of one JSON line
_SNIFFED: Final = 1 << 16
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class ReadError(CLIError):
    """A document can't be used; the others can."""


class ChangedError(ReadError):
    """The file changed while it was read, before any of it was used: read it again."""


@dataclass
class Text:
    """One document of a source."""

    key: str  # in the manifest
    name: str  # for people
    pieces: Iterable[str]  # to read once; of a line of JSON, as often as you like
    title: str | None = None
    public: bool = False
    encoding: str | None = None  # where it was guessed
    number: int | None = None  # line of a JSONL file: two of them may have the same name

    @property
    def remark(self) -> str | None:
        """What the user should know about how it was read."""
        guessed = self.encoding
        return None if guessed is None else f"{self.name} is not UTF-8: read as {guessed} (--encoding overrides)"


@dataclass
class Bad:
    """A document of a source that can't be used, in the middle of others."""

    why: str


def texts(source: Source, encoding: str | None = None) -> Iterator[Text | Bad]:
    """The documents of a source: one, or one a line of JSON.

    Raises:
        ReadError: it can't be used; raised while pieces are read, too.
    """
    try:
        with source.path.open("rb") as file:
            found = os.fstat(file.fileno())
            before = Stat.of(found)
            if source.format == "jsonl":
                yield from _lines(source, file, encoding)
            elif source.format == "pdf":
                from minipic_cli.corpus.pdf import pages

                yield Text(source.key, source.name, pages(file, source.name))
            else:
                pieces, guessed = _decoded(file, source.name, before.size, encoding)
                if before.size <= WHOLE and Stat.of(os.fstat(file.fileno())) != before:
                    raise ChangedError(_changed(source.name))
                if source.format == "html":
                    from minipic_cli.corpus.html import plain

                    pieces = plain(pieces)
                yield Text(source.key, source.name, _filled(pieces, source.name), encoding=guessed)
            if Stat.of(os.fstat(file.fileno())) != before:
                raise ReadError(_changed(source.name))
    except OSError as error:
        raise ReadError(f"{source.name} can't be read: {error.strerror or error}") from error


def _decoded(file: IO[bytes], name: str, size: int, encoding: str | None) -> tuple[Iterator[str], str | None]:
    """Text in pieces, and the encoding if it was guessed."""
    head = file.read(_SNIFFED)
    bom = next((name for mark, name in _BOMS if head.startswith(mark)), None)
    if encoding is None and bom is None and b"\0" in head:
        raise ReadError(f"{name} is a binary file: give text, Markdown, HTML, PDF or JSONL")
    chosen = encoding or bom or "utf-8"
    if size > WHOLE:
        return _stream(file, head, name, chosen), None
    data = head + file.read()
    try:
        return iter((data.decode(chosen),)), None
    except UnicodeDecodeError as error:
        if encoding or bom:
            raise ReadError(f"{name} is not valid {chosen}: {_where(error)}") from error
        guessed = guess(data)
        if guessed is None:
            raise ReadError(
                f"{name} is not valid UTF-8 ({_where(error)}) and its encoding can't be told: give it with --encoding"
            ) from error
        return iter((data.decode(guessed),)), guessed
    except LookupError as error:
        raise ReadError(f"there is no encoding {chosen!r}") from error


def _stream(file: IO[bytes], head: bytes, name: str, encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)()
    data, at = head, 0
    while True:
        try:
            piece = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise ReadError(
                f"{name} is not valid {encoding} (byte {error.object[error.start]:#04x} behind offset {at}): "
                "convert it, or name its encoding with --encoding"
            ) from error
        if "\0" in piece:
            raise ReadError(f"{name} is a binary file: it has NUL bytes behind offset {at}")
        if piece:
            yield piece
        if not data:
            return
        at += len(data)
        data = file.read(PIECE)


def _filled(pieces: Iterator[str], name: str) -> Iterator[str]:
    """Refuse a text that is only space, and NULs that the sniffing didn't see."""
    filled = False
    for piece in pieces:
        if "\0" in piece:
            raise ReadError(f"{name} is a binary file: it has NUL bytes")
        filled = filled or bool(piece.strip())
        yield piece
    if not filled:
        raise ReadError(f"{name} is empty")


def _lines(source: Source, file: IO[bytes], encoding: str | None) -> Iterator[Text | Bad]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        where = f"{source.name} line {number}"
        if len(line) == MAX_LINE:
            raise ReadError(f"{where} is longer than {MAX_LINE >> 20} MiB: is it JSON lines?")
        if not line.strip():
            continue
        try:
            fields = _object(line.decode(encoding or "utf-8").removeprefix("\ufeff"), where)
        except (ReadError, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, ReadError) else f"{where} is not valid {encoding or 'UTF-8'}"
            yield Bad(why)
            continue
        label, title = fields.get("name"), fields.get("title")
        yield Text(
            f"{source.key}#{label or f'line {number}'}",
            str(label or f"{source.name}:{number}"),
            (fields["text"],),
            None if title is None else str(title),
            fields.get("public") is True,
            number=number,
        )
    if not number:
        raise ReadError(f"{source.name} is empty")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"{where} is not JSON: {error}") from error
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise ReadError(f"{where} is not a JSON object")
    fields = cast("dict[str, Any]", value)
    if not isinstance(fields.get("text"), str):
        raise ReadError(f'{where} has no "text"')
    if not fields["text"].strip():
        raise ReadError(f"{where} is empty")
    try:
        f"{fields.get('name')}{fields.get('title')}{fields['text']}".encode()
    except UnicodeEncodeError:
        raise ReadError(f"{where} holds a lone surrogate: it was not decoded as what it is") from None
    return fields


def _changed(name: str) -> str:
    return f"{name} changed while it was read: try again when it is at rest"


def _where(error: UnicodeDecodeError) -> str:
    return f"byte {error.object[error.start]:#04x} at offset {error.start}"
