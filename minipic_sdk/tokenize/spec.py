"""A tokenizer as data: what a profile carries over the wire and what a fingerprint is made of."""

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, cast

from minipic_sdk.errors import ProfileError
from minipic_sdk.tokenize.base import AddedToken, Tokenizer

# How cl100k and Llama 3 cut text into words (llama_models, llama3/tokenizer.py).
CL100K_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TokenizerSpec:
    """Everything needed to build a tokenizer, without a model directory."""

    kind: Literal["huggingface", "tiktoken"]
    data: str = field(repr=False)  # content of tokenizer.json, or of the rank file
    pattern: str = field(default="", repr=False)  # tiktoken: how text is cut into words
    special_tokens: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)  # tiktoken: text -> id

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, 64 hex digits; formatting of the JSON doesn't count."""
        body = json.loads(self.data) if self.kind == "huggingface" else self.data
        parts = [self.kind, body, self.pattern, dict(self.special_tokens)]
        return sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def added_tokens(self) -> Sequence[AddedToken]:
        """The added tokens, by id."""
        if self.kind == "tiktoken":
            return sorted(AddedToken(id, text) for text, id in self.special_tokens.items())
        entries = cast("list[dict[str, Any]]", json.loads(self.data).get("added_tokens") or [])
        return sorted(AddedToken(e["id"], e["content"], bool(e.get("special"))) for e in entries)

    def load(self, markup: Collection[str] = (), forbidden: Collection[int] = ()) -> Tokenizer:
        """The tokenizer; built once per spec and arguments (tens of milliseconds).

        Args:
            markup: further added tokens that users can't write.
            forbidden: further ids that text must never become.
        """
        key = (frozenset(markup), frozenset(forbidden))
        if key not in self._loaded:
            self._loaded[key] = self._load(markup, forbidden)
        return self._loaded[key]

    @cached_property
    def _loaded(self) -> dict[Hashable, Tokenizer]:
        return {}

    def _load(self, markup: Collection[str], forbidden: Collection[int]) -> Tokenizer:
        if self.kind == "tiktoken":
            from minipic_sdk.tokenize.tiktoken import TiktokenTokenizer

            return TiktokenTokenizer(self.data, self.pattern, self.special_tokens, forbidden)
        from minipic_sdk.tokenize.hf import HFTokenizer

        return HFTokenizer(self.data, markup, forbidden)

    def to_json(self) -> dict[str, Any]:
        """The profile's ``tokenizer`` object."""
        if self.kind == "huggingface":
            return {"kind": self.kind, "data": self.data}
        return {
            "kind": self.kind,
            "data": self.data,
            "pattern": self.pattern,
            "special_tokens": dict(self.special_tokens),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "TokenizerSpec":
        """The inverse of ``to_json``; raises ``ProfileError``."""
        kind, data = body.get("kind"), body.get("data")
        if kind not in ("huggingface", "tiktoken") or not isinstance(data, str):
            raise ProfileError(f"unknown tokenizer of kind {kind!r} in the profile")
        return cls(kind, data, body.get("pattern", ""), body.get("special_tokens", {}))

    @classmethod
    def from_directory(cls, path: Path) -> "TokenizerSpec":
        """``tokenizer.json``, or a rank file beside an ``added_tokens_decoder`` in tokenizer_config.json."""
        if (path / "tokenizer.json").is_file():
            return cls("huggingface", (path / "tokenizer.json").read_text(encoding="utf-8"))
        ranks = next((f for f in sorted(path.glob("*tok*")) if _is_rank_file(f)), None)
        if ranks is None:
            raise ProfileError(f"{path} has no tokenizer.json and no tiktoken rank file")
        config = path / "tokenizer_config.json"
        stated: dict[str, Any] = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        added = cast("dict[str, dict[str, str]]", stated.get("added_tokens_decoder", {}))
        special = {entry["content"]: int(id) for id, entry in added.items()}
        return cls("tiktoken", ranks.read_text(encoding="ascii"), CL100K_PATTERN, special)


def _is_rank_file(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".json":
        return False
    with path.open("rb") as file:
        first = file.readline(200).split()
    return len(first) == 2 and first[1].isdigit()
