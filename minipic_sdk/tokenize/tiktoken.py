"""tiktoken rank files (one ``base64 rank`` pair a line), as Llama 3 and OpenAI models ship them."""

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from minipic_sdk.errors import ProfileError
from minipic_sdk.tokenize.base import AddedToken

# Longer runs overflow the stack of tiktoken's regular expressions; Llama 3 cuts at the same length.
_LONG_RUN: Final = re.compile(r"\S{25000}|\s{25000}")


class TiktokenTokenizer:
    """Byte-pair ranks and a split pattern; special tokens stand beside the ranks, so text can't reach them."""

    def __init__(
        self, ranks: str, pattern: str, special_tokens: Mapping[str, int], forbidden: Collection[int] = ()
    ) -> None:
        """Build it.

        Args:
            ranks: content of the rank file.
            pattern: the regular expression that cuts text into words.
            special_tokens: text -> id, ids beyond the ranks.
            forbidden: further ids that text must never become.
        """
        try:
            import tiktoken
        except ImportError:
            raise ProfileError("this profile needs the tiktoken package: pip install 'minipic-sdk[tiktoken]'") from None
        try:
            table = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in ranks.splitlines())}
        except (ValueError, binascii.Error) as error:
            raise ProfileError(f"not a tiktoken rank file: {error}") from None
        if usual := frozenset(forbidden).intersection(table.values()):
            raise ProfileError(f"token {min(usual)} is a piece of ordinary text: it can't be a control token")
        self._added = tuple(AddedToken(id, text) for text, id in special_tokens.items())
        self._inner = tiktoken.Encoding(
            "minipic", pat_str=pattern, mergeable_ranks=table, special_tokens=dict(special_tokens)
        )

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """The special tokens."""
        return self._added

    def encode(self, text: str, *, opening: bool = False) -> list[int]:
        """Ids of ``text`` as ordinary text; ``opening`` makes no difference to byte-level tokens."""
        del opening
        pieces: list[int] = []
        at = 0
        for match in _LONG_RUN.finditer(text):
            pieces += self._inner.encode_ordinary(text[at : match.end()])
            at = match.end()
        return pieces + self._inner.encode_ordinary(text[at:])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``."""
        return self._inner.decode(token_ids)
