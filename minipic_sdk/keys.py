"""Content-addressed names of segments, for caches and reports on the client's side.

A span's key depends on its tokens, the anchor and the profile alone, as its KV does; a head's on its tokens; a
dependent segment's on everything the model reads before it. They are not the server's block hashes.
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any


def span_key(fingerprint: str, anchor: Sequence[int], token_ids: Sequence[int]) -> str:
    """Key of a span, 32 hex digits.

    Args:
        fingerprint: of the profile.
        anchor: ids that the span sees.
        token_ids: its visible tokens.
    """
    digest = _before_span(fingerprint, tuple(anchor)).copy()
    digest.update(_run(token_ids))
    return digest.hexdigest()[:32]


def text_key(fingerprint: str, before: Iterable[str], token_ids: Sequence[int]) -> str:
    """Key of a head or dependent segment, 32 hex digits.

    Args:
        fingerprint: of the profile.
        before: keys of the segments it sees, in logical order.
        token_ids: its visible tokens.
    """
    return hashlib.sha256(_named("text", fingerprint, *before) + _run(token_ids)).hexdigest()[:32]


@lru_cache(maxsize=64)
def _before_span(fingerprint: str, anchor: tuple[int, ...]) -> Any:  # hashlib has no public name for it
    """What the keys of all spans behind one anchor have in common; to be copied."""
    return hashlib.sha256(_named("span", fingerprint) + _run(anchor))


def _named(*names: str) -> bytes:
    return "\0".join((*names, "")).encode()


def _run(token_ids: Sequence[int]) -> bytes:
    return b"%d:" % len(token_ids) + array("I", token_ids).tobytes()
