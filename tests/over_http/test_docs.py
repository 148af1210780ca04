"""The Python of README and docs runs as it stands there, against a real server."""

import re
from pathlib import Path

import pytest

from over_http import KEY

ROOT = Path(__file__).resolve().parents[2]


def code(page: str) -> list[str]:
    """The page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def shown(page: str) -> str:
    """What the page says its first Python block prints."""
    text = (ROOT / page).read_text()
    found = re.search(r"^```python\n.*?^```\n+prints.*?^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/other-clients.md", "docs/layouts.md"])
def test_it_runs(served, page, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MINIPIC_API_KEY", KEY)
    monkeypatch.setenv("MINIPIC_BASE_URL", served)
    blocks = code(page)
    assert blocks
    variables: dict = {}
    for block in blocks:
        exec(block.replace("http://localhost:8000", served).replace('"none"', f'"{KEY}"'), variables)
    if page in ("README.md", "docs/quickstart.md"):
        assert _less_cached(capsys.readouterr().out) == _less_cached(shown(page))


def _less_cached(said: str) -> str:
    """Without the number of cached tokens: other tests leave the head in the cache."""
    return re.sub(r"^\d+ of", "N of", said, flags=re.MULTILINE)


def test_the_page_on_testing(tmp_path) -> None:
    (block,) = code("docs/testing.md")
    variables: dict = {}
    exec(block, variables)
    variables["test_the_second_question_finds_its_documents"]()
