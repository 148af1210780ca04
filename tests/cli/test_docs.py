"""The command line's reference page says what the command says, and the words of a status are all explained."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from minipic_cli.corpus import entry
from minipic_sdk.wire import Status

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_command_says() -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); import cli_docs; sys.stdout.write(cli_docs.render())"
    env = {k: v for k, v in os.environ.items() if not k.startswith("MINIPIC")}
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    assert made.stdout == (ROOT / "docs" / "cli.md").read_text(), "run `python scripts/cli_docs.py`"


def test_every_status_and_state_is_explained_once() -> None:
    page = (ROOT / "docs" / "is-it-working.md").read_text()
    words = page.partition("## The words")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", words, re.MULTILINE)
    assert sorted(rows) == sorted((*get_args(Status), "unknown"))
    states = re.search(r"state: str  # (.*)", inspect.getsource(entry)).group(1)
    assert re.findall(r"`(\w+)`[:;]", words) == re.findall(r'"(\w+)"', states)
