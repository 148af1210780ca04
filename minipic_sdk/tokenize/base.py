"""What a tokenizer must do here, and the markup that separates a template's text from a user's.

*Markup* is every string that is one token when the chat template writes it (``<|im_start|>``) and ordinary text when
a user does. Template text is cut at markup first; what is left, and everything that users wrote, goes through
``encode``, which never returns a markup id.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol


class AddedToken(NamedTuple):
    """A vocabulary entry that is matched before the tokenizer's model runs (tokenizer.json, ``added_tokens``)."""

    id: int
    content: str
    special: bool = True
    lstrip: bool = False  # takes the whitespace before it along
    rstrip: bool = False  # takes the whitespace behind it along


class Tokenizer(Protocol):
    """Text to token ids for one model."""

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """All added tokens, special or not."""
        ...

    def encode(self, text: str, *, opening: bool = False) -> list[int]:
        """Ids of ``text`` as ordinary text: no BOS, no markup ids.

        Args:
            text: anything; a spelled-out special token stays text.
            opening: whether it opens the prompt (SentencePiece models put a space before the first word only).
        """
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as ``encode`` of one that doesn't open the prompt."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens spelled out."""
        ...


class Markup:
    """Finds markup in template text."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        by_length = sorted(tokens, key=lambda t: (-len(t.content), t.content))
        self.ids: Mapping[str, int] = {t.content: t.id for t in by_length}
        self._pattern = re.compile("|".join(map(_pattern, by_length)) or r"(?!)")
        self._plain = re.compile("|".join(re.escape(t.content) for t in by_length) or r"(?!)")
        self._openings = {t.content[:n] for t in by_length for n in range(1, len(t.content))}
        self._endings = {t.content[n:] for t in by_length for n in range(1, len(t.content))}
        self._edges = {t.content[n] for t in by_length for n in (0, -1)}
        self._longest = max((len(t.content) for t in by_length), default=0)

    def split(self, text: str) -> list[str | int]:
        """Cut template text into runs of ordinary text and markup ids; empty runs are left out."""
        parts: list[str | int] = []
        at = 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                parts.append(text[at : match.start()])
            parts.append(self._id_of(match[0]))
            at = match.end()
        if at < len(text):
            parts.append(text[at:])
        return parts

    def _id_of(self, found: str) -> int:
        token = self.ids.get(found)
        return self.ids[next(c for c in self.ids if c in found)] if token is None else token  # whitespace came along

    def unsafe(self, text: str) -> list[tuple[int, int]]:
        """Ranges of user text that could be read as markup: whole strings, or halves of one at the text's ends."""
        if self._edges.isdisjoint(text):
            return []  # nearly always
        found = [m.span() for m in self._plain.finditer(text)]
        core = text.strip()
        if not core:
            return found
        start = len(text) - len(text.lstrip())
        stop = start + len(core)
        limit = min(self._longest - 1, len(core))
        head = next((n for n in range(limit, 0, -1) if core[:n] in self._endings), 0)
        tail = next((n for n in range(limit, 0, -1) if core[-n:] in self._openings), 0)
        if head:
            found.append((start, start + head))
        if tail:
            found.append((stop - tail, stop))
        return _merged(found)


def _pattern(token: AddedToken) -> str:
    before = r"\s*" if token.lstrip else ""
    behind = r"\s*" if token.rstrip else ""
    return before + re.escape(token.content) + behind


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
