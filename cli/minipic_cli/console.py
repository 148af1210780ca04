"""What the command writes: data to stdout, the rest to stderr; colours and bars on terminals only."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

WIDE: Final = 120  # columns, where there is no terminal to ask


class _State:
    quiet = False


def set_quiet(quiet: bool) -> None:
    """Leave notes and progress out; errors are still written."""
    _State.quiet = quiet


def is_quiet() -> bool:
    """Whether notes and progress are left out."""
    return _State.quiet


def out() -> Console:
    """Stdout."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def err() -> Console:
    """Stderr."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else WIDE)


def note(text: str) -> None:
    """A line for the user on stderr, unless quiet."""
    if not _State.quiet:
        err().print(text, style="dim", markup=False, soft_wrap=True)


def error(text: str) -> None:
    """The one line that an error is."""
    line = " ".join(text.split())
    err().print(f"[bold red]minipic:[/] {_escape(line)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Data for programs, on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table; columns named in ``right`` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in right)
    return made


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say that something takes a while: a spinner on a terminal, a line elsewhere."""
    console = err()
    if _State.quiet or not console.is_terminal:
        note(text)
        yield
        return
    with console.status(text):
        yield


@contextmanager
def progress(text: str, total: int) -> Iterator["Advance"]:
    """A bar on a terminal, a line elsewhere."""
    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = _State.quiet or not console.is_terminal
    if hidden:
        note(text)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        yield Advance(bar, bar.add_task(text, total=total))


@contextmanager
def reading(text: str, size: int) -> Iterator["Advance"]:
    """A bar over so many bytes, with the rate and the time left; nothing off a terminal."""
    console = err()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    hidden = _State.quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        yield Advance(bar, bar.add_task(text, total=size or None))


SECONDS_A_LINE: Final = 10.0


class Advance:
    """Moves a progress bar."""

    def __init__(self, bar: Progress, task: Any) -> None:
        self._bar, self._task = bar, task
        self._next_line = time.monotonic() + SECONDS_A_LINE

    def __call__(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def tell(self, count: int = 1) -> None:
        """Move it; where there is no bar, a line now and then says how far it is."""
        self(count)
        if self._bar.disable:
            task = self._bar.tasks[0]
            self.say(f"{task.description}: {task.completed:.0f} of {task.total:.0f}")

    def say(self, text: str) -> None:
        """What is being done now: beside the bar, or as a line now and then where there is none."""
        if not self._bar.disable:
            self._bar.update(self._task, description=text)
        elif time.monotonic() > self._next_line:
            self._next_line = time.monotonic() + SECONDS_A_LINE
            note(text)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
