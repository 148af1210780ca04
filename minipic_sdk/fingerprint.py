"""The fingerprint of a profile: which rules a prompt was composed under.

It is a list of short digests, so that a server that holds another one can say what changed:
``1:tokenizer=6c1f...,template=90ab...,block_size=16,control=3.4.5,anchor=77de...,plugin=0.1.0``.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

_VERSION: Final = "1"
FINGERPRINT: Final = re.compile(r"\b\d+:[a-z_]+=[\w.+-]*\w(?:,[a-z_]+=[\w.+-]*\w)+")  # inside a message
_WORDS: Final = {
    "tokenizer": "the tokenizer",
    "template": "the chat template",
    "block_size": "the block size",
    "control": "the control tokens",
    "anchor": "the anchor",
    "plugin": "the plugin version",
}


def join_fingerprint(parts: Mapping[str, str]) -> str:
    """The fingerprint of ``parts``, in the order given."""
    return f"{_VERSION}:" + ",".join(f"{k}={v}" for k, v in parts.items())


def short_digest(text: str) -> str:
    """64 bits of SHA-256: enough to notice a change, which is all a fingerprint is for."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def explain_mismatch(theirs: str, ours: str) -> tuple[str, ...]:
    """What differs between a request's fingerprint and the one expected, in words; empty if nothing does."""
    if theirs == ours:
        return ()
    old, new = _parse(theirs), _parse(ours)
    if old is None or new is None:
        return (f"the fingerprint {theirs!r} is of another kind than {ours!r}",)
    changed: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            changed.append(f"{_WORDS.get(key, key)} changed from {old.get(key)} to {new.get(key)}")
    return tuple(changed)


def _parse(fingerprint: str) -> dict[str, str] | None:
    version, _, body = fingerprint.partition(":")
    if version != _VERSION:
        return None
    return {k: v for k, _, v in (part.partition("=") for part in body.split(","))}
