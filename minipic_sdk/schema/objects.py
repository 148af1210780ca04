"""A schema as Python objects, what a prompt selects of it, and where each selected piece of text stands.

    places = Union(Module("miami", "..."), Module("paris", "..."))
    plan = Module("plan", "A trip of ", Param("days", 4), " days.", places)
    schema = Schema("travel", plan)
    prompt = Prompt.compose(
        schema.select({"plan": {"days": "three", "miami": {}}}), "Which beach?", layout="prompt-cache"
    )

Whitespace follows ``Document``: a module's text is stripped and ends in a blank line, so a module without parameters
has the tokens, and the cached blocks, of a document with the same text. Whitespace around a parameter counts as one
space, which belongs to the argument: that is how tokenizers cut words.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, cast

from minipic_sdk.documents import SEPARATOR, Document
from minipic_sdk.errors import SchemaError

__all__ = ["Argument", "Module", "Param", "Schema", "SchemaError", "Slot", "Union"]

Argument = str | Mapping[str, "Argument"]
"""What a selection says about a name inside a module: a parameter's value, or a module's own selection."""


Key = tuple[tuple[str, ...], int]
"""A text or hole of a schema: names of the modules around it, and its index among the innermost one's items."""


@dataclass(frozen=True)
class Param:
    """A hole in a module's text, for a value of at most ``length`` tokens."""

    name: str
    length: int  # positions kept free for it
    default: str | None = None  # value where a prompt gives none; the markup's scaffold

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 1:
            raise SchemaError(f"parameter {self.name!r} has the length {self.length!r}: a positive number of tokens")


class _Text(NamedTuple):
    text: str
    behind_param: bool  # of the same module


class _Hole(NamedTuple):
    param: Param
    before: str  # whitespace that the argument brings along
    behind: str


class Module:
    """A named piece of text with parameters, further modules and unions in it. Immutable."""

    def __init__(self, name: str, *contents: "str | Param | Module | Union", cache: bool = True) -> None:
        """Say what the module is made of.

        Args:
            name: unique where it stands.
            contents: in order.
            cache: ``False``: its text is computed anew for every prompt, in context.

        Raises:
            SchemaError: a name is taken, empty or missing.
        """
        if not name:
            raise SchemaError("a module needs a name")
        self.name = name
        self.contents = contents
        self.cache = cache
        names = [n for item in contents for n in _names(item)]
        if twice := next((n for n in names if names.count(n) > 1), None):
            raise SchemaError(f"{name!r} defines {twice!r} twice")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self.contents)} items)"

    @cached_property
    def items(self) -> "tuple[_Text | _Hole | Module | Union, ...]":
        """The contents with whitespace settled; texts of nothing else are gone."""
        joined: list[str | Param | Module | Union] = []
        for item in self.contents:
            if isinstance(item, str) and joined and isinstance(joined[-1], str):
                joined[-1] += item
            else:
                joined.append(item)
        kept = [c for c in joined if not isinstance(c, str) or c.strip()]
        out: list[_Text | _Hole | Module | Union] = []
        param_seen = False
        for i, item in enumerate(kept):
            before = kept[i - 1] if i else None
            behind = kept[i + 1] if i + 1 < len(kept) else None
            if isinstance(item, str):
                lead = " " if isinstance(before, Param) and item[:1].isspace() else ""
                tail = "" if isinstance(behind, Param) else SEPARATOR
                out.append(_Text(lead + item.strip() + tail, param_seen))
            elif isinstance(item, Param):
                param_seen = True
                spaced = isinstance(before, Param) or (isinstance(before, str) and before[-1:].isspace())
                goes_on = isinstance(behind, str | Param)
                out.append(_Hole(item, " " * spaced, "" if goes_on else SEPARATOR))
            else:
                out.append(item)
        return tuple(out)


class Union:
    """Alternatives that start at the same position; a prompt takes at most one."""

    def __init__(self, *modules: Module) -> None:
        if not modules or not all(isinstance(m, Module) for m in modules):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError("a union holds modules, at least one")
        self.modules = modules

    def __repr__(self) -> str:
        return f"Union({', '.join(m.name for m in self.modules)})"


@dataclass(frozen=True)
class Slot(Document):
    """One selected text or argument: a document that knows its place in the schema."""

    schema: "Schema" = field(default=None, repr=False)  # type: ignore[assignment]  # always given
    key: Key = ((), 0)
    behind_param: bool = False
    param: Param | None = None

    @cached_property
    def content(self) -> str:
        """Its text as it is: whitespace is settled already."""
        return self.text


class Schema(Module):
    """The root: its own text is part of every prompt; it has no parameters."""

    def __init__(self, name: str, *contents: "str | Module | Union", system: str | None = None) -> None:
        """As ``Module``; ``system`` is the system prompt that the schema was written for.

        Raises:
            SchemaError: a name is taken, empty or missing, or a parameter stands outside a module.
        """
        super().__init__(name, *contents)
        self.system = system
        if loose := next((c for c in cast("Sequence[object]", contents) if isinstance(c, Param)), None):
            raise SchemaError(f"parameter {loose.name!r} stands outside a module")

    def select(self, *modules: "str | Mapping[str, Argument]") -> list[Document]:
        """Documents for ``Prompt.compose``, in the schema's order.

        Args:
            modules: names, or mappings from names to what is selected inside: ``{"plan": {"days": "3", "miami": {}}}``.

        Raises:
            SchemaError: an unknown name, a missing argument, or two alternatives of one union.
        """
        wanted: dict[str, Argument] = {}
        for entry in modules:
            new: Mapping[str, Argument] = {entry: {}} if isinstance(entry, str) else entry
            if twice := wanted.keys() & new.keys():
                raise SchemaError(f"{min(twice)!r} is selected twice")
            wanted.update(new)
        return list(self._slots(self, (), wanted))

    def places(self, encode: Callable[[str], list[int]]) -> dict[Key, tuple[int, int]]:
        """Start and length, in tokens, of every text and hole; 0 is the schema's beginning."""
        places: dict[Key, tuple[int, int]] = {}
        _measure(self, (), 0, encode, places)
        return places

    def _slots(self, module: Module, path: tuple[str, ...], wanted: Mapping[str, Argument]) -> Iterator[Slot]:
        known = {n for item in module.items for n in _names(item)}
        where = "/".join(path) or self.name
        if unknown := wanted.keys() - known:
            has = f": it has {', '.join(sorted(known))}" if known else ""
            raise SchemaError(f"{where!r} has no {min(unknown)!r}{has}")
        for i, item in enumerate(module.items):
            name = "/".join((self.name, *path)) + (f"#{i}" if i else "")
            made = Slot("", name=name, schema=self, key=(path, i), cache=module.cache)
            if isinstance(item, _Text):
                yield replace(made, text=item.text, behind_param=item.behind_param)
            elif isinstance(item, _Hole):
                value = _value(item.param, wanted, where)
                text = item.before + value.strip() + item.behind if value.strip() else ""
                name = "/".join((self.name, *path, item.param.name))
                yield replace(made, text=text, name=name, param=item.param, cache=False)
            else:
                chosen = [m for m in _modules(item) if m.name in wanted]
                if len(chosen) > 1:
                    raise SchemaError(f"{chosen[0].name!r} and {chosen[1].name!r} are alternatives: select one")
                for inner in chosen:
                    inside = wanted[inner.name]
                    if isinstance(inside, str):
                        raise SchemaError(f"{inner.name!r} is a module: what it holds is a mapping, not a text")
                    yield from self._slots(inner, (*path, inner.name), inside)


def _names(item: object) -> list[str]:
    if isinstance(item, _Hole):
        return [item.param.name]
    if isinstance(item, Param):
        return [item.name]
    return [m.name for m in _modules(item)]


def _modules(item: object) -> tuple[Module, ...]:
    return item.modules if isinstance(item, Union) else (item,) if isinstance(item, Module) else ()


def _value(param: Param, wanted: Mapping[str, Argument], where: str) -> str:
    value = wanted.get(param.name, param.default)
    if value is None:
        raise SchemaError(f"{where!r} needs a value for its parameter {param.name!r}")
    if not isinstance(value, str):
        raise SchemaError(f"the parameter {param.name!r} of {where!r} takes a text, got {type(value).__name__}")
    return value


def _measure(
    module: Module,
    path: tuple[str, ...],
    at: int,
    encode: Callable[[str], list[int]],
    places: dict[Key, tuple[int, int]],
) -> int:
    """Fill ``places`` with what ``module`` holds, from position ``at``; returns where it ends."""
    for i, item in enumerate(module.items):
        if isinstance(item, _Text):
            length = len(encode(item.text))
        elif isinstance(item, _Hole):
            length = item.param.length + (len(encode(item.behind)) if item.behind else 0)
        else:
            ends = [_measure(m, (*path, m.name), at, encode, places) for m in _modules(item)]
            at = max(ends)
            continue
        places[path, i] = (at, length)
        at += length
    return at
