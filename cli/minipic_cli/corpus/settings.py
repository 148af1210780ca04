"""Options that the corpus commands share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from minipic_cli.corpus.chunking import DEFAULT_TOKENS, MIN_TOKENS, Chunker
from minipic_cli.corpus.entry import default_path
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.sources import FORMATS, Format
from minipic_cli.errors import UsageError
from minipic_sdk import Document, ModelProfile

ManifestFile = Annotated[
    Path | None,
    typer.Option(
        "--manifest",
        metavar="FILE",
        envvar="MINIPIC_MANIFEST",
        help="Where it is noted what was warmed; by default in the user's data directory.",
        show_default=False,
    ),
]
ChunkTokens = Annotated[
    int,
    typer.Option(
        "--chunk-tokens",
        metavar="N",
        help="Cut longer documents where their structure allows, into chunks of at most N tokens; 0: never.",
    ),
]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format", help="Of named files and stdin: text, markdown, html, pdf or jsonl; by default by suffix."
    ),
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", metavar="NAME", help="Of text files; by default UTF-8, else it is guessed.")
]


def open_manifest(path: Path | None, *, create: bool = True) -> Manifest:
    """The manifest named, or the user's."""
    return Manifest(path or default_path(), create=create)


def format_of(name: str | None) -> Format | None:
    """A format by its name; raises ``UsageError``."""
    if name is None:
        return None
    for known in FORMATS.values():
        if known == name:
            return known
    raise UsageError(f"--format takes text, markdown, html, pdf or jsonl, not {name!r}")


def check_encoding(name: str | None) -> str | None:
    """An encoding that Python knows; raises ``UsageError``."""
    try:
        if name is not None:
            "".encode(name)
    except LookupError as error:
        raise UsageError(f"--encoding: there is no encoding {name!r}") from error
    return name


def cut_documents(documents: Sequence[Document], profile: ModelProfile) -> list[Document]:
    """Documents cut as `minipic warm` cuts them by default, so that what it warmed is found."""
    chunker = Chunker(profile.encode_batch, chunk_limit(DEFAULT_TOKENS, profile))
    return [
        replace(
            d, text=chunk.text, title=None if number else d.title, name=f"{d.name}#{number + 1}" if number else d.name
        )
        for d in documents
        for number, chunk in enumerate(chunker.chunks((d.text,), d.title))
    ]


def chunk_limit(tokens: int, profile: ModelProfile) -> int:
    """Tokens of a chunk, at most half of what the model takes; raises ``UsageError``."""
    if tokens and tokens < MIN_TOKENS:
        raise UsageError(f"--chunk-tokens must be 0 or at least {MIN_TOKENS}, got {tokens}")
    return min(tokens, profile.max_model_len // 2)
