"""Every example runs against a real server and says what was cached."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from over_http import KEY, LIMIT_S

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_it_runs_and_hits_the_cache(served, path) -> None:
    env = {**os.environ, "MINIPIC_BASE_URL": served, "MINIPIC_API_KEY": KEY}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert any(int(n) > 0 for n in re.findall(r"(\d+) (?:of \d+ )?tokens (?:were )?cached", done.stdout))
    assert re.search(r"\bhit\b", done.stdout)
