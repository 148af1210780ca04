"""What prompts are made of: documents, memories and tool descriptions. Each becomes one span."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from minipic_sdk.errors import InputError

SEPARATOR: Final = "\n\n"  # stands behind every document, inside its span

# The order in which models see tool descriptions in training; every other key follows, sorted.
_KEY_ORDER: Final = {
    key: rank
    for rank, key in enumerate(("type", "function", "name", "description", "parameters", "properties", "required"))
}


def _nothing() -> dict[str, Any]:
    return {}  # called several times faster than dict[str, Any] is


@dataclass(frozen=True)
class Document:
    """A piece of text that is cached on its own: a retrieved passage, a file, a memory state.

    One without text and title, or of white space only, is left out of prompts: no span, and the model reads nothing.
    """

    text: str
    title: str | None = None  # a line above the text, seen by the model
    name: str | None = None  # in results and logs only; not seen by the model
    public: bool = False  # whether requests with other cache salts may share its KV
    metadata: Mapping[str, Any] = field(default_factory=_nothing, compare=False, repr=False)  # yours; not sent
    cache: bool = True  # False: no span, but text that is computed anew, in context

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"a document's text must be a str, got {type(self.text).__name__}")

    @cached_property
    def content(self) -> str:
        """The text of its span: title line, text without surrounding whitespace, separator; empty if there is none."""
        return content_of(self.text, self.title)

    @classmethod
    def of(cls, value: "str | Document | Mapping[str, Any]") -> "Document":
        """A document from text, or from ``{"text": ..., "title"?, "name"?, "public"?, "cache"?}``.

        Raises:
            InputError: another type, or unknown keys.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            keys = {"text", "title", "name", "public", "metadata", "cache"}
            if "text" in value and keys.issuperset(value):
                return cls(**value)
            raise InputError(f"a document mapping has the keys {sorted(keys)}, got {sorted(map(str, value))}")
        raise InputError(f"a document is a str, a Document or a mapping, got {type(value).__name__}")


def content_of(text: str, title: str | None = None) -> str:
    """``Document.content`` of a document that isn't made, since there are very many."""
    title, body = (title or "").strip(), text.strip()
    if title:
        body = f"{title}\n{body}" if body else title
    return body + SEPARATOR if body else ""


@dataclass(frozen=True)
class Tool:
    """A function the model may call. Key order doesn't matter: descriptions are serialised canonically."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # JSON schema
    public: bool = False  # whether requests with other cache salts may share its KV
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further keys of the function, such as strict

    @property
    def definition(self) -> dict[str, Any]:
        """The OpenAI form ``{"type": "function", "function": {...}}``, keys in canonical order."""
        function = {
            **self.extra,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        kept = {k: v for k, v in function.items() if k == "name" or v not in ("", {}, None)}
        return cast("dict[str, Any]", _canonical({"type": "function", "function": kept}))

    @property
    def json(self) -> str:
        """``definition`` as one line of JSON."""
        return json.dumps(self.definition, ensure_ascii=False)

    @classmethod
    def of(cls, value: "Tool | Mapping[str, Any]") -> "Tool":
        """A tool from its OpenAI form, or from the function object alone.

        Raises:
            InputError: not a mapping, no name, or not of type function.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InputError(f"a tool is a Tool or a mapping, got {type(value).__name__}")
        if value.get("type", "function") != "function":
            raise InputError(f"only tools of type 'function' are supported, got {value['type']!r}")
        function = dict(cast("Mapping[str, Any]", value.get("function", value)))
        name = function.pop("name", None)
        if not isinstance(name, str) or not name:
            raise InputError("a tool needs a name")
        known = {k: function.pop(k) for k in ("description", "parameters") if function.get(k) is not None}
        extra = {k: v for k, v in function.items() if k != "type" and v is not None}
        return cls(name=name, **known, extra=extra)


def _canonical(value: object) -> object:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {k: _canonical(v) for k, v in sorted(items, key=lambda kv: (_KEY_ORDER.get(kv[0], 99), kv[0]))}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in cast("list[object]", value)]
    return value
