"""The command with a server inside the process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from minipic_cli import connection, main
from minipic_sdk import MiniPIC
from minipic_sdk.testing import FakeServer


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("MINIPIC_MANIFEST", str(tmp_path_factory.mktemp("manifest") / "corpus.db"))
    # Lines of stderr are counted: none more where the machine is slow.
    monkeypatch.setattr("minipic_cli.console.SECONDS_A_LINE", float("inf"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command as the console script does."""

    def ran(*arguments: str | Path) -> Ran:
        code = main.main([str(a) for a in arguments])
        return Ran(code, *capsys.readouterr())

    return ran


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeServer], FakeServer]:
    """Put a fake server behind every address."""

    def served(server: FakeServer) -> FakeServer:
        monkeypatch.setattr(connection, "MiniPIC", partial(MiniPIC, http_client=server.http_client()))
        return server

    return served


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A directory of two documents."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Apples\n\nApples are red. " * 4)
    (folder / "b.txt").write_text("Bananas are yellow. " * 4)
    return folder
