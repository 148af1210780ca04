"""Hugging Face ``tokenizer.json`` files, through the ``tokenizers`` package."""

import json
import secrets
from collections.abc import Collection, Sequence
from typing import Any, cast

from minipic_sdk.errors import InputError, ProfileError
from minipic_sdk.tokenize.base import AddedToken


class HFTokenizer:
    """A ``tokenizer.json`` that reads markup as text.

    ``tokenizers`` can be told to leave *special* tokens alone (``encode_special_tokens``), so markup that the file
    doesn't call special is declared special here. A text that doesn't open the prompt is encoded behind a marker that
    nobody can type, so that "first word" rules (Metaspace ``prepend_scheme="first"``) see what they would in context.
    """

    def __init__(self, tokenizer_json: str, markup: Collection[str] = (), forbidden: Collection[int] = ()) -> None:
        """Build it.

        Args:
            tokenizer_json: content of the file.
            markup: further added tokens to treat as markup; special ones are anyway.
            forbidden: further ids that ``encode`` must not return (control tokens).
        """
        from tokenizers import AddedToken as Added
        from tokenizers import Tokenizer

        data = cast("dict[str, Any]", json.loads(tokenizer_json))
        entries = cast("list[dict[str, Any]]", data.get("added_tokens") or [])
        for entry in entries:
            entry["special"] = bool(entry.get("special")) or entry["content"] in markup
        self._added = tuple(
            AddedToken(e["id"], e["content"], e["special"], bool(e.get("lstrip")), bool(e.get("rstrip")))
            for e in entries
        )
        # No BOS, no cutting, no filling: the template says what a prompt begins with.
        data.update(added_tokens=entries, post_processor=None, truncation=None, padding=None)
        try:
            self._inner = Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the package raises bare Exception
            raise ProfileError(f"tokenizer.json is not readable: {error}") from None
        self._inner.encode_special_tokens = True
        self._vocab_size = self._inner.get_vocab_size(with_added_tokens=True)
        self._marker = f"\ufdd2{secrets.token_hex(8)}\ufdd2"
        marker = Added(self._marker, normalized=False, special=False)
        self._inner.add_tokens([marker])  # pyright: ignore[reportUnknownMemberType]
        self._forbidden = frozenset(forbidden) | {t.id for t in self._added if t.special}

    @property
    def added_tokens(self) -> Sequence[AddedToken]:
        """Added tokens of the file; ``special`` means markup."""
        return self._added

    def encode(self, text: str, *, opening: bool = False) -> list[int]:
        """Ids of ``text`` as ordinary text (see ``Tokenizer.encode``)."""
        return self._encode([text], "" if opening else self._marker)[0] if text else []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; several at a time take less time each, since the vocabulary stays in the processor's cache."""
        return self._encode(texts, self._marker)

    def _encode(self, texts: Sequence[str], lead: str) -> list[list[int]]:
        # The batch call is also the one that skips character offsets, which take a quarter of the time.
        try:
            encoded = self._inner.encode_batch_fast([lead + text for text in texts], add_special_tokens=False)
        except TypeError:  # the package says no more than that
            raise InputError("the text holds a lone surrogate: it was not decoded as what it is") from None
        out: list[list[int]] = []
        for text, one in zip(texts, encoded, strict=True):
            ids = one.ids[bool(lead) :]
            out.append(ids if self._forbidden.isdisjoint(ids) else self._encode_broken(text, lead))
        return out

    def _encode_broken(self, text: str, lead: str) -> list[int]:
        """A vocabulary may hold markup as an ordinary piece (Unigram): break such a piece in two."""
        encoding = self._inner.encode(lead + text, add_special_tokens=False)
        where = next(i for i, token in enumerate(encoding.ids) if token in self._forbidden)
        start, stop = encoding.offsets[where]
        cut = start + 1 - len(lead)
        if stop - start < 2 or not 0 < cut < len(text):
            raise ProfileError(f"ordinary text needs token {encoding.ids[where]}, a control or template token")
        return self.encode(text[:cut], opening=not lead) + self.encode(text[cut:])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``; ids beyond the vocabulary decode to nothing."""
        return self._inner.decode([t for t in token_ids if t < self._vocab_size], skip_special_tokens=False)
