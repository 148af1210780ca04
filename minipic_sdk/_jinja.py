"""The sandboxed environment that Hugging Face templates expect. Imported on first use: jinja2 is slow to import."""

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote; rendering needs only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def environment() -> ImmutableSandboxedEnvironment:
    """The one environment; it has no state of its own."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    # cast: what jinja2 says of these tables differs from version to version.
    filters = cast("dict[str, Any]", env.filters)  # pyright: ignore[reportUnknownMemberType]
    helpers = cast("dict[str, Any]", env.globals)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _tojson
    helpers.update(raise_exception=_raise, strftime_now=_strftime_now)
    return env


@pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    options: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "indent": indent,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    ask: Callable[..., str | None] | None = context.get("_to_json")
    told = ask(value, options) if ask is not None else None
    return json.dumps(value, **options) if told is None else told


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
