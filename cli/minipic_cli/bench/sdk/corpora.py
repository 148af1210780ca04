"""Texts to measure with, none of them twice the same."""

import json
from functools import cache
from pathlib import Path
from typing import Final

from minipic_sdk import ModelProfile

DOCUMENTS: Final = 10  # of a request
DOCUMENT_TOKENS: Final = 100
_PASSAGE: Final = 500  # characters: about a hundred tokens


def documents(profile: ModelProfile) -> list[str]:
    """``DOCUMENTS`` texts of about ``DOCUMENT_TOKENS`` tokens."""
    ids = profile.encode(prose())
    runs = (ids[n * DOCUMENT_TOKENS : (n + 1) * DOCUMENT_TOKENS] for n in range(1, DOCUMENTS + 1))
    return [profile.tokenizer.decode(run) for run in runs]


@cache
def prose() -> str:
    """Some 700 kB of English and reStructuredText: the language reference, as the standard library carries it."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _excerpt(number: int, length: int) -> str:
    """Part of it, another one for each number."""
    text = prose()
    start = number * 7919 % (len(text) - length)
    return text[start : start + length]


def write_files(folder: Path, megabytes: float) -> Path:
    """Files of about 50 kB each."""
    folder.mkdir()
    for number in range(max(2, round(megabytes * 20))):
        write_file(folder / f"{number:05}", 0.05, first=13 * number)
    return folder


def write_file(path: Path, megabytes: float, first: int = 0) -> Path:
    """One Markdown file of many sections."""
    target = path.with_suffix(".md")
    with target.open("w") as file:
        number = first
        while file.tell() < megabytes * 1e6:
            file.write(f"## Section {number}\n\n{_excerpt(number, 4000)}\n\n")
            number += 1
    return target


def write_lines(path: Path, megabytes: float) -> Path:
    """Passages of about a hundred tokens, a line of JSON each."""
    target = path.with_suffix(".jsonl")
    with target.open("w") as file:
        number = 0
        while file.tell() < megabytes * 1e6:
            file.write(json.dumps({"name": f"p{number}", "text": f"{number}. {_excerpt(number, _PASSAGE)}"}) + "\n")
            number += 1
    return target
