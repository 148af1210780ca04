"""The Python of README and docs runs as it stands there, against a real server."""

import re
from pathlib import Path

import pytest

from over_http import KEY

ROOT = Path(__file__).resolve().parents[2]


def code(page: str) -> list[str]:
    """The page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/other-clients.md", "docs/layouts.md"])
def test_it_runs(served, page, tmp_path, monkeypatch, capsys) -> None:
    for name in ("handbook.md", "prices.md", "faq.md"):
        (tmp_path / name).write_text(f"# {name}\n\nDelivery costs nothing above forty crowns, says the {name}.\n" * 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIPIC_API_KEY", KEY)
    monkeypatch.setenv("MINIPIC_BASE_URL", served)
    blocks = code(page)
    assert blocks
    variables: dict = {}
    for block in blocks:
        exec(block.replace("http://localhost:8000", served).replace('"none"', f'"{KEY}"'), variables)
    if page == "README.md":
        assert "tokens came from the cache" in capsys.readouterr().out


def test_the_page_on_testing(tmp_path) -> None:
    (block,) = code("docs/testing.md")
    variables: dict = {}
    exec(block, variables)
    variables["test_the_second_question_finds_its_documents"]()
