"""Which encoding a text without a byte order mark is in that is not UTF-8.

The library ranks what the bytes could be by how disorderly and how likely the text is, letter by letter, which leaves
readings of Western and of Central European text near-equal. Among those the accented letters decide: a text's are those
of one language.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_LOOKED_AT: Final = 1 << 20  # bytes
_DISORDER: Final = 0.4  # of readings that are looked at, as the library counts it
_TEXT: Final = 0.2  # of what it takes for text by itself
_ENOUGH: Final = 0.9  # of what isn't ASCII, to be letters of the language
_PREFERRED: Final = ("cp1252", "cp1250")  # where several are as good
_MARKS: Final = frozenset("“”„‟‘’‚«»‹›–—…•·€£§°©®™²½\u00a0\u00ad")
_ALPHABETS: Final = tuple(
    frozenset(letters) | _MARKS
    for letters in (
        "éèêçïöüñàâ",  # English, which borrows
        "àâçèéêëîïôùûüÿœ",  # French
        "äöüßéà",  # German
        "áéíñóúü¡¿",  # Spanish
        "àáâãçéêíóôõúü",  # Portuguese
        "àçèéíïòóúü",  # Catalan
        "àèéìíîòóù",  # Italian
        "áèéëêíïóöü",  # Dutch
        "åäöéü",  # Swedish, Finnish
        "æøåéèêòóô",  # Danish, Norwegian
        "áðéíóúýþæö",  # Icelandic
        "ąćęłńóśźż",  # Polish
        "áčďéěíňóřšťúůýžö",  # Czech
        "áäčďéíĺľňóôŕšťúýž",  # Slovak
        "áéíóöőúüű",  # Hungarian
        "čćđšž",  # Croatian, Bosnian, Slovene
        "ăâîșțşţ",  # Romanian
        "çëê",  # Albanian
        "çğıöşüâîû",  # Turkish
        "ąčęėįšųūž",  # Lithuanian
        "āčēģīķļņšūž",  # Latvian
        "äõöüšž",  # Estonian
    )
)


def guess(data: bytes) -> str | None:
    """The encoding; ``None`` if it can't be told."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return None
    sample = data[:_LOOKED_AT]
    found = from_bytes(sample, threshold=_DISORDER)
    names = dict.fromkeys(name for match in found for name in (match.encoding, *match.could_be_from_charset))
    best = next((match.encoding for match in found if match.chaos <= _TEXT), None)
    guesses = (_by_letters(names, sample), best)
    return next((name for name in guesses if name is not None and _decodes(data, name)), None)


def _by_letters(names: Iterable[str], data: bytes) -> str | None:
    """The encoding, of near-equal ones, under which the accented letters are a language's, if any."""
    high = {byte: n for byte, n in Counter(data).items() if byte >= 0x80}
    shares = {name: round(_share(high, name), 2) for name in names}
    most = max(shares.values(), default=0.0)
    equal = [name for name, share in shares.items() if share == most]
    return next((name for name in (*_PREFERRED, *equal) if name in equal), None) if most >= _ENOUGH else None


def _share(high: Mapping[int, int], encoding: str) -> float:
    """Of the bytes that aren't ASCII, those that are letters of the language that has most of them."""
    read = [(bytes((byte,)).decode(encoding, "replace").lower(), n) for byte, n in high.items()]
    return max(sum(n for c, n in read if c in letters) for letters in _ALPHABETS) / max(1, sum(high.values()))


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
