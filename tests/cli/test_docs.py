"""The command line's reference page says what the command says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_command_says() -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); import cli_docs; sys.stdout.write(cli_docs.render())"
    env = {k: v for k, v in os.environ.items() if not k.startswith("MINIPIC")}
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    assert made.stdout == (ROOT / "docs" / "cli.md").read_text(), "run `python scripts/cli_docs.py`"
