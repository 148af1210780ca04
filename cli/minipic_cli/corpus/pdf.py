"""PDF as text, page by page."""

import logging
from collections.abc import Iterator
from typing import IO

from minipic_cli.corpus.reading import ReadError


def pages(file: IO[bytes], name: str) -> Iterator[str]:
    """The text of every page, with a blank line between pages.

    Raises:
        ReadError: no PDF, encrypted, damaged, or pictures only.
    """
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise ReadError(f"{name}: reading PDF takes pypdf: pip install 'minipic-sdk[corpus]'") from error
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about every oddity of every file
    try:
        reader = PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ReadError(f"{name} is encrypted: remove its password first")
        empty = True
        for page in reader.pages:
            text = page.extract_text().replace("\0", "")
            if text.strip():
                empty = False
                yield text + "\n\n"
    except (ReadError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever a damaged file makes of it: PdfReadError, KeyError, RecursionError, ...
        raise ReadError(f"{name} is not a readable PDF ({type(error).__name__}: {error})") from error
    if empty:
        raise ReadError(f"{name} has no text: are its pages pictures?")
