"""Content-addressed names of segments, for caches and reports on the client's side.

A span's key depends on its tokens, the anchor and the profile alone, as its KV does; a head's on its tokens; a
dependent segment's on everything the model reads before it. They are not the server's block hashes.
"""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256


def span_key(fingerprint: str, anchor: Sequence[int], token_ids: Sequence[int]) -> str:
    """Key of a span, 32 hex digits.

    Args:
        fingerprint: of the profile.
        anchor: ids that the span sees.
        token_ids: its visible tokens.
    """
    return _key("span", fingerprint, (), anchor, token_ids)


def text_key(fingerprint: str, before: Iterable[str], token_ids: Sequence[int]) -> str:
    """Key of a head or dependent segment, 32 hex digits.

    Args:
        fingerprint: of the profile.
        before: keys of the segments it sees, in logical order.
        token_ids: its visible tokens.
    """
    return _key("text", fingerprint, before, token_ids)


def _key(domain: str, fingerprint: str, before: Iterable[str], *runs: Sequence[int]) -> str:
    named = "\0".join((domain, fingerprint, *before, "")).encode()
    return sha256(named + b"".join([b"%d:" % len(run) + array("I", run).tobytes() for run in runs])).hexdigest()[:32]
