"""Which encoding a text without a byte order mark is in that is not UTF-8."""

import codecs
import string
from typing import Final

_LOOKED_AT: Final = 1 << 20  # bytes
_FEW: Final = 0.25  # of a text's letters: fewer beside ASCII are accented ones, not those of another script
_LATIN: Final = ("cp1252", "cp1250", "cp1254", "cp1257", "iso8859-2", "iso8859-16")
_BEYOND_ASCII: Final = bytes(range(0x80, 0x100))


def guess(data: bytes) -> str | None:
    """Python's name of the encoding; ``None`` if it can't be told."""
    try:
        from chardet import EncodingEra, detect
    except ImportError:
        return None
    # Left alone it takes short texts for those of an old Macintosh, and Italian for Russian with Latin letters.
    found = detect(data, encoding_era=EncodingEra.MODERN_WEB | EncodingEra.LEGACY_ISO, max_bytes=_LOOKED_AT)
    if found["encoding"] is None:
        return None
    codec = codecs.lookup(found["encoding"])
    if codec.name not in _LATIN and _share_beyond_ascii(data[:_LOOKED_AT]) < _FEW:
        codec = codecs.lookup(detect(data, include_encodings=_LATIN, max_bytes=_LOOKED_AT)["encoding"] or codec.name)
    try:
        codec.decode(data)
    except UnicodeDecodeError:
        return None
    return codec.name


def _share_beyond_ascii(data: bytes) -> float:
    """Of a text's letters."""
    letters = len(data) - len(data.translate(None, string.ascii_letters.encode()))
    beyond = len(data) - len(data.translate(None, _BEYOND_ASCII))
    return beyond / max(1, letters + beyond)
