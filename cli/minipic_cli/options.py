"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Final

import typer

from minipic_cli.console import set_quiet
from minipic_cli.errors import UsageError
from minipic_sdk import layouts

LAYOUTS: Final = tuple(name for name in layouts.LAYOUTS if name != layouts.PromptCache.name)  # that needs a schema


def _quiet(value: bool) -> bool:
    if value:
        set_quiet(True)
    return value


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_quiet, help="No notes and no progress on stderr, errors only.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        envvar="MINIPIC_BASE_URL",
        metavar="URL",
        help="The server, with or without /v1; by default http://127.0.0.1:8000.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="MINIPIC_API_KEY",
        metavar="KEY",
        show_envvar=True,
        help="The server's API key, if it has one.",
    ),
]
Salt = Annotated[
    str | None,
    typer.Option("--cache-salt", metavar="SALT", help="Keep what is cached apart from other salts'."),
]


def check_model_directory(path: Path) -> None:
    """Raise ``UsageError`` for what is no model directory."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory")
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is no model directory: it has no config.json")


def _layout(value: str) -> str:
    if value not in LAYOUTS:
        raise typer.BadParameter(f"{value!r}: it is one of {', '.join(LAYOUTS)}")
    return value


Layout = Annotated[str, typer.Option("--layout", callback=_layout, help=f"{', '.join(LAYOUTS)}: see docs/layouts.md.")]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")]
Docs = Annotated[
    list[str] | None,
    typer.Option(
        "--docs",
        "-d",
        metavar="PATH...",
        help="What to read, as for `minipic warm`, in the order given: text, Markdown, HTML, PDF or JSONL files, "
        "directories of them, globs, or - for stdin.",
    ),
]
MoreDocs = Annotated[list[str] | None, typer.Argument(metavar="", hidden=True, show_default=False)]
