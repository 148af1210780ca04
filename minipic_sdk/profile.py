"""What a client must know about a served model to compose prompts for it."""

import json
import lzma
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from minipic_sdk._version import __version__
from minipic_sdk.errors import NotFoundError, ProfileError, TemplateError
from minipic_sdk.fingerprint import join_fingerprint, short_digest
from minipic_sdk.gate import Gate
from minipic_sdk.layout import ControlTokens
from minipic_sdk.template import ChatTemplate
from minipic_sdk.tokenize.base import Markup, Tokenizer
from minipic_sdk.tokenize.cache import TokenCache
from minipic_sdk.tokenize.spec import TokenizerSpec

if TYPE_CHECKING:
    from minipic_sdk.rendering import Literally

_NO_LIMIT: Final = 1 << 30
_FIELDS: Final = (
    "model",
    "block_size",
    "control_tokens",
    "anchor_token_ids",
    "chat_template",
    "tokenizer",
    "max_model_len",
)


@dataclass(frozen=True)
class ModelProfile:
    """A model as its server runs it (``GET /v1/minipic/profile``). Immutable; safe to share between threads."""

    model: str  # the name to send in requests
    block_size: int  # tokens per KV block
    control_tokens: ControlTokens
    anchor_token_ids: tuple[int, ...]  # what every prompt opens with and every span sees
    chat_template: str = field(repr=False)
    tokenizer_spec: TokenizerSpec = field(repr=False)
    max_model_len: int  # tokens, physical
    template_variables: Mapping[str, str] = field(default_factory=dict[str, str])  # bos_token, eos_token, ...
    eos_token_ids: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ("anchored", "auto", "block", "epic", "prefix", "prompt-cache")
    plugin_version: str = __version__
    gate: Gate | None = None  # what `minipic doctor` measured; layout="auto" follows it

    def __post_init__(self) -> None:
        ids = self.control_tokens
        if self.block_size < 2 or len(set(ids)) != 3 or min(ids) < 0:
            raise ProfileError(f"block_size={self.block_size}, control_tokens={tuple(ids)}: not usable")
        if named := [
            t.content for t in self.tokenizer_spec.added_tokens if t.id in ids and t.content in self.chat_template
        ]:
            raise ProfileError(f"the chat template uses {named[0]!r}, which can't be a control token then")

    @cached_property
    def fingerprint(self) -> str:
        """Identifies what token ids mean here; requests carry it (see fingerprint.py)."""
        constants = sorted(self.template_variables.items())
        return join_fingerprint(
            {
                "tokenizer": self.tokenizer_spec.digest[:16],
                "template": short_digest(repr((self.chat_template, constants))),
                "block_size": str(self.block_size),
                "control": ".".join(map(str, self.control_tokens)),
                "anchor": short_digest(repr(self.anchor_token_ids)),
                "plugin": self.plugin_version,
            }
        )

    @cached_property
    def template(self) -> ChatTemplate:
        """The compiled chat template."""
        return ChatTemplate(self.chat_template, self.template_variables)

    @cached_property
    def markup(self) -> Markup:
        """What users can't write: special tokens, control tokens, and added tokens that the template uses."""
        ids = self.control_tokens
        named = self.chat_template
        return Markup(t for t in self._added if t.special or t.id in ids or t.content in named)

    @cached_property
    def spoken_markup(self) -> Markup:
        """What assistants can't write either; ``<think>`` and the like they can."""
        special = {t.id for t in self.tokenizer_spec.added_tokens if t.special}
        return Markup(t for t in self._added if t.id in special or t.id in self.control_tokens)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; it never makes markup of text."""
        named = [t.content for t in self.tokenizer_spec.added_tokens if t.content in self.chat_template]
        return self.tokenizer_spec.load(named, self.control_tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of text that stands inside a prompt, on its own; cached by content."""
        return self._cache.get(text, self.tokenizer.encode)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as ``encode`` gives them; for many texts faster than one by one."""
        return self._cache.get_batch(texts, self.tokenizer.encode_batch)

    def encode_parts(
        self, parts: "Iterable[str | Literally]", *, opening: bool = False, anchored: bool = False
    ) -> list[int]:
        """Ids of template text (``str``, markup is read) and user text (markup is not), tokenised as one run.

        Args:
            parts: in order.
            opening: whether they open the prompt.
            anchored: whether a prompt that could open with the anchor must, at the price of a token boundary.
        """
        runs: list[str | int] = []
        for part in parts:
            found = self.markup.split(part) if isinstance(part, str) else [part.text]
            for run in found:
                if isinstance(run, str) and runs and isinstance(runs[-1], str):
                    runs[-1] += run
                else:
                    runs.append(run)
        ids = self._encode_runs(runs, opening)
        anchor = list(self.anchor_token_ids)
        if not anchored or ids[: len(anchor)] == anchor:
            return ids
        cut = self._cut_behind_anchor(runs)
        return ids if cut is None else self._encode_runs(cut, opening)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "ModelProfile":
        """The inverse of ``to_json``; unknown keys are ignored.

        Raises:
            ProfileError: a key is missing or of the wrong type.
        """
        if missing := [k for k in _FIELDS if k not in body]:
            raise ProfileError(f"the profile lacks {missing[0]!r}")
        try:
            control = cast("Mapping[str, int]", body["control_tokens"])
            return cls(
                model=body["model"],
                block_size=int(body["block_size"]),
                control_tokens=ControlTokens(control["ssep"], control["pdep"], control["pad"]),
                anchor_token_ids=tuple(body["anchor_token_ids"]),
                chat_template=body["chat_template"],
                tokenizer_spec=TokenizerSpec.from_json(body["tokenizer"]),
                max_model_len=int(body["max_model_len"]),
                template_variables=dict(body.get("template_variables", {})),
                eos_token_ids=tuple(body.get("eos_token_ids", ())),
                layouts=tuple(body.get("layouts", cls.layouts)),
                plugin_version=str(body.get("plugin_version", cls.plugin_version)),
                gate=None if body.get("gate") is None else Gate.from_json(body["gate"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"the profile is not readable: {error!r}") from None

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``GET /v1/minipic/profile``."""
        return {
            "model": self.model,
            "block_size": self.block_size,
            "control_tokens": self.control_tokens._asdict(),
            "anchor_token_ids": list(self.anchor_token_ids),
            "layouts": list(self.layouts),
            "chat_template": self.chat_template,
            "template_variables": dict(self.template_variables),
            "tokenizer": self.tokenizer_spec.to_json(),
            "eos_token_ids": list(self.eos_token_ids),
            "max_model_len": self.max_model_len,
            "plugin_version": self.plugin_version,
            "gate": None if self.gate is None else self.gate.to_json(),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_directory(
        cls,
        path: str | Path,
        *,
        block_size: int = 16,
        control_tokens: ControlTokens | None = None,
        model: str | None = None,
        max_model_len: int | None = None,
        anchor_token_ids: Sequence[int] | None = None,
    ) -> "ModelProfile":
        """The profile of a Hugging Face model directory; what isn't given is derived, the same way everywhere.

        Args:
            path: with config.json, tokenizer files and, usually, a chat template; weights are not read.
            block_size: tokens per KV block of the server.
            control_tokens: ids; by default three special tokens that nothing uses.
            model: served name; by default the directory's name.
            max_model_len: tokens; by default ``max_position_embeddings``.
            anchor_token_ids: by default the constant opening of the chat template.

        Raises:
            ProfileError: a file is missing or unreadable, or no control tokens are left.
        """
        from minipic_sdk.model_files import profile_of_directory

        return profile_of_directory(Path(path), block_size, control_tokens, model, max_model_len, anchor_token_ids)

    @classmethod
    def from_server(cls, base_url: str | None = None, *, api_key: str | None = None) -> "ModelProfile":
        """Ask a server (``GET /v1/minipic/profile``); arguments as in ``MiniPIC``.

        Raises:
            APIError: the server can't be reached or has no plugin.
        """
        from minipic_sdk.client import MiniPIC

        with MiniPIC(base_url=base_url, api_key=api_key) as client:
            return client.profile()

    @classmethod
    def default(cls) -> "ModelProfile":
        """The bundled model's (SmolLM2-135M-Instruct, block size 16), as ``minipic serve`` serves it."""
        return _bundled()

    @classmethod
    def configured(cls) -> "ModelProfile":
        """The profile of the server at ``MINIPIC_BASE_URL`` (asked once a process), else the bundled model's.

        A server without the plugin tells no profile: prompts are composed with the bundled one then, and the client
        sends such a server the messages, not the ids.
        """
        url = os.environ.get("MINIPIC_BASE_URL")
        return _served(url, os.environ.get("MINIPIC_API_KEY")) if url else cls.default()

    @cached_property
    def _added(self) -> Sequence[Any]:
        return self.tokenizer.added_tokens

    @cached_property
    def _cache(self) -> TokenCache:
        return TokenCache()

    def _encode_runs(self, runs: Sequence[str | int], opening: bool) -> list[int]:
        ids: list[int] = []
        for i, run in enumerate(runs):
            if isinstance(run, int):
                if run in self.control_tokens:
                    raise TemplateError(f"the chat template, or one of its options, spells control token {run}")
                ids.append(run)
            elif opening and not i:
                ids += self.tokenizer.encode(run, opening=True)
            else:
                ids += self.encode(run)
        return ids

    def _cut_behind_anchor(self, runs: list[str | int]) -> list[str | int] | None:
        """Put a token boundary behind the anchor's text: a system prompt may begin with a letter that would merge."""
        anchor = self.markup.split(self.tokenizer.decode(self.anchor_token_ids))
        count = len(anchor)
        if not anchor or runs[: count - 1] != anchor[:-1] or count > len(runs):
            return None
        last, beside = anchor[-1], runs[count - 1]
        if isinstance(last, int) or isinstance(beside, int) or not beside.startswith(last):
            return None
        return [*anchor, beside[len(last) :], *runs[count:]]


@cache
def _bundled() -> ModelProfile:
    packed = files("minipic_sdk").joinpath("smollm2-135m-instruct.json.xz").read_bytes()
    return ModelProfile.from_json(json.loads(lzma.decompress(packed)))


@lru_cache(maxsize=8)
def _served(base_url: str, api_key: str | None) -> ModelProfile:
    try:
        return ModelProfile.from_server(base_url, api_key=api_key)
    except NotFoundError:
        return replace(_bundled(), max_model_len=_NO_LIMIT)  # the server will say if a prompt is too long
