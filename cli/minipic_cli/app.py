"""The command: its subcommands, and how errors end it."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from minipic_cli import ask, bench, console, demo, doctor, inspect, options, serve, warm
from minipic_cli.corpus import commands as corpus
from minipic_cli.main import INTERRUPTED
from minipic_sdk.errors import MiniPICError

app = typer.Typer(
    name="minipic",
    help="Serve a model with position-free KV caching, and ask it about documents in any order.",
    epilog="Set MINIPIC_DEBUG=1 to see where an unexpected error comes from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from minipic_sdk import __version__

        typer.echo(f"minipic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve a model with position-free KV caching, and ask it about documents in any order."""


for module in (demo, serve, warm, corpus, ask, inspect, bench, doctor):
    module.add_to(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """See ``main.main``."""
    console.set_quiet(False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 is no reason to fail
    try:
        result = app(args=None if arguments is None else list(arguments), prog_name="minipic", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`); what is still buffered has no one to go to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MiniPICError as error:
        console.error(str(error))
        return getattr(error, "exit_code", 1)
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    said = getattr(error, "format_message", None)  # typer's own errors, whichever of its releases raised them
    if said is not None:
        code = getattr(error, "exit_code", 1)
        context = getattr(error, "ctx", None)
        text = said()
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(text, err=True)
        else:
            hint = f" (see `{context.command_path} --help`)" if context is not None else ""
            console.error(f"{text.rstrip('.')}{hint}")
        return code
    if os.environ.get("MINIPIC_DEBUG") == "1":
        raise error
    where = "" if isinstance(error, OSError) else f"unexpected {type(error).__name__}: "
    console.error(f"{where}{error} (MINIPIC_DEBUG=1 shows where)")
    return 1
