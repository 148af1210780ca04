"""Reading Prompt Cache's markup (PML, https://github.com/yale-sys/prompt-cache, "Prompt Markup Language").

It is XML: ``<schema>``, ``<module name cache>``, ``<union>``, ``<parameter name length scaffold>``, and in prompts an
element per module with its arguments as attributes. Of the tags for chats, ``<user>`` is transparent, ``<system>``
holds the system prompt, and an ``<assistant>`` must be empty: the turns come from the model's own chat template.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from xml.parsers import expat

from minipic_sdk.documents import Document
from minipic_sdk.errors import SchemaError
from minipic_sdk.schema.objects import Argument, Module, Param, Schema, Union

_CHAT: Final = ("system", "user", "assistant")
_T = TypeVar("_T")


class Selection(NamedTuple):
    """A parsed prompt, for ``Prompt.compose(s.documents, s.question, system=s.system, layout="prompt-cache")``."""

    documents: list[Document]
    question: str
    system: str | None  # the schema's


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int  # from 1
    column: int  # from 1
    children: "list[str | _Element]" = field(default_factory=list["str | _Element"])

    def error(self, rule: str) -> SchemaError:
        return SchemaError(rule, self.line, self.column)

    def checked(self, make: Callable[[], _T]) -> _T:
        """What ``make`` makes; its errors get this element's place."""
        try:
            return make()
        except SchemaError as error:
            raise (error if error.line else self.error(error.rule)) from None

    def attribute(self, *names: str) -> str:
        for name in names:
            if name in self.attributes:
                return self.attributes[name]
        raise self.error(f"<{self.tag}> needs the attribute {names[0]!r}")

    def allow(self, *names: str) -> None:
        if unknown := self.attributes.keys() - set(names):
            raise self.error(f"<{self.tag}> has no attribute {min(unknown)!r}")

    @property
    def text(self) -> str:
        """Its text; raises if there is an element in it."""
        if inner := next((c for c in self.children if isinstance(c, _Element)), None):
            raise inner.error(f"<{inner.tag}> can't stand in <{self.tag}>")
        return "".join(map(str, self.children)).strip()


def parse_schema(markup: str) -> Schema:
    """The schema written as ``<schema name="...">...</schema>``.

    Raises:
        SchemaError: with line and column.
    """
    root = _tree(markup)
    if root.tag != "schema":
        raise root.error(f"a schema starts with <schema>, got <{root.tag}>")
    root.allow("name")
    system: list[str] = []
    contents: list[str | Module | Union] = []
    for child in _unwrapped(root, system):
        if isinstance(child, _Element) and child.tag in ("parameter", "param"):
            raise child.error("a parameter stands in a module")
        contents.append(child if isinstance(child, str) else _item(child))  # pyright: ignore[reportArgumentType]
    name = root.attribute("name")
    return root.checked(lambda: Schema(name, *contents, system="\n\n".join(system) or None))


def parse_prompt(schema: Schema, markup: str) -> Selection:
    """The selection written as ``<prompt schema="..."><module-name parameter="value"/>... question</prompt>``.

    Raises:
        SchemaError: with line and column; a wrong name or argument has those of its module.
    """
    root = _tree(markup)
    if root.tag != "prompt":
        raise root.error(f"a prompt starts with <prompt>, got <{root.tag}>")
    root.allow("schema")
    if root.attribute("schema") != schema.name:
        raise root.error(f"the prompt is for the schema {root.attribute('schema')!r}, this one is {schema.name!r}")
    wanted: dict[str, Argument] = {}
    question: list[str] = []
    for child in root.children:
        if isinstance(child, str):
            question += [child.strip()] if child.strip() else []
        elif child.tag == "user":
            question += [child.text] if child.text else []
        elif child.tag in _CHAT:
            raise child.error(f"<{child.tag}> in a prompt: pass earlier turns to compose as history")
        elif question:
            raise child.error(f"<{child.tag}> comes after text: modules come first, the question last")
        elif child.tag in wanted:
            raise child.error(f"{child.tag!r} is selected twice")
        else:
            wanted[child.tag] = _checked(schema, child)
    if not question:
        raise root.error("the prompt has no question")
    return Selection(root.checked(lambda: schema.select(wanted)), "\n\n".join(question), schema.system)


def _unwrapped(root: _Element, system: list[str]) -> "list[str | _Element]":
    """Children of the root, with the tags for chats taken off."""
    out: list[str | _Element] = []
    for child in root.children:
        if isinstance(child, str) or child.tag not in _CHAT:
            out.append(child)
        elif child.tag == "user":
            out += child.children
        elif child.text and child.tag == "assistant":
            raise child.error("<assistant> with text: pass earlier turns to compose as history")
        elif child.text:
            system.append(child.text)
    return out


def _item(element: _Element) -> "Module | Union | Param":
    if element.tag == "module":
        return _module(element)
    if element.tag == "union":
        return _union(element)
    if element.tag in ("parameter", "param"):
        return _param(element)
    if element.tag in _CHAT:
        raise element.error(f"<{element.tag}> inside a module: the turns come from the chat template")
    raise element.error(f"unknown element <{element.tag}>: module, union or parameter")


def _module(element: _Element) -> Module:
    element.allow("name", "cache")
    cache = element.attributes.get("cache", "true")
    if cache not in ("true", "false"):
        raise element.error(f"cache={cache!r}: 'true' or 'false'")
    contents = [c if isinstance(c, str) else _item(c) for c in element.children]
    name = element.attribute("name")
    return element.checked(lambda: Module(name, *contents, cache=cache == "true"))


def _union(element: _Element) -> Union:
    element.allow("scaffold")
    modules: list[Module] = []
    for child in element.children:
        if isinstance(child, _Element) and child.tag == "module":
            modules.append(_module(child))
        elif isinstance(child, _Element):
            raise child.error(f"<{child.tag}> in a union: it holds modules only")
        elif child.strip():
            raise element.error(f"text in a union: {child.strip()[:30]!r}")
    scaffold = element.attributes.get("scaffold")
    if scaffold is not None and scaffold not in [m.name for m in modules]:
        raise element.error(f"the scaffold {scaffold!r} is not in the union")
    return element.checked(lambda: Union(*modules))


def _param(element: _Element) -> Param:
    element.allow("name", "length", "len", "scaffold")
    if element.children:
        raise element.error("a parameter is empty: its value comes with the prompt")
    length = element.attribute("length", "len")
    if not (length.isascii() and length.isdigit()):
        raise element.error(f"length={length!r}: a number of tokens")
    name, default = element.attribute("name"), element.attributes.get("scaffold")
    return element.checked(lambda: Param(name, int(length), default))


def _checked(schema: Schema, element: _Element) -> dict[str, Argument]:
    """What is selected inside one module of the root; what is wrong with it gets its place."""
    inside = _selected(element)
    element.checked(lambda: schema.select({element.tag: inside}))
    return inside


def _selected(element: _Element) -> dict[str, Argument]:
    inside: dict[str, Argument] = dict(element.attributes)
    for child in element.children:
        if isinstance(child, str):
            if child.strip():
                raise element.error(f"text inside the module {element.tag!r}: {child.strip()[:30]!r}")
        elif child.tag in inside:
            raise child.error(f"{child.tag!r} is given twice")
        else:
            inside[child.tag] = _selected(child)
    return inside


def _tree(markup: str) -> _Element:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    open_: list[_Element] = [_Element("", {}, 1, 1)]

    def place() -> tuple[int, int]:
        return parser.CurrentLineNumber, parser.CurrentColumnNumber + 1

    def start(tag: str, attributes: dict[str, str]) -> None:
        made = _Element(tag, attributes, *place())
        open_[-1].children.append(made)
        open_.append(made)

    def end(_tag: str) -> None:
        open_.pop()

    def text(data: str) -> None:
        children = open_[-1].children
        if children and isinstance(children[-1], str):  # a comment stood between
            children[-1] += data
        else:
            children.append(data)

    def doctype(*_: object) -> None:
        # Entities could expand to gigabytes, and no schema needs them.
        raise SchemaError("a DOCTYPE is not allowed", *place())

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(markup, True)
    except expat.ExpatError as error:
        raise SchemaError(expat.ErrorString(error.code), error.lineno, error.offset + 1) from None
    return next(c for c in open_[0].children if isinstance(c, _Element))
