"""The command against real servers: the main job, and the mistakes of a hurried person."""

import json

import pytest

from over_http import KEY, MODEL, free_address, minipic

QUESTION = "What colour are apples?"


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Apples\n\n" + "Apples are red, and this orchard grows three kinds of them. " * 3)
    (folder / "b.txt").write_text("Bananas are yellow. They come by ship from far away, green at first. " * 3)
    return folder


@pytest.fixture
def here(served):
    return {"MINIPIC_BASE_URL": served, "MINIPIC_API_KEY": KEY}


def line(done) -> str:
    """The one line of an error."""
    assert "Traceback" not in done.stderr
    (said,) = done.stderr.strip().splitlines()
    return said


def test_warm_ask_and_inspect(here, docs) -> None:
    done = minipic("warm", docs, "--json", env=here)
    assert done.stdout, done.stderr
    warmed = json.loads(done.stdout)
    assert (warmed["documents"], warmed["rejected"]) == (2, 0)
    asked = json.loads(minipic("ask", QUESTION, "--docs", docs / "b.txt", docs / "a.md", "--json", env=here).stdout)
    assert [s["status"] for s in asked["spans"]] == ["hit", "hit"]
    assert asked["answer"]
    seen = minipic("inspect", QUESTION, "--docs", docs, env=here)
    assert seen.returncode == 0
    assert "2 of 2 spans would hit" in seen.stdout


def test_a_page_in_latin_1_is_the_span_that_was_warmed(here, tmp_path) -> None:
    page = tmp_path / "grüße.html"
    page.write_bytes("<h1>Grüße</h1><p>Der Käse kommt über die Straße aus Österreich.</p>".encode("latin-1"))
    assert minipic("warm", page, "--no-manifest", env=here).returncode == 0
    asked = json.loads(minipic("ask", QUESTION, "--docs", page, "--max-tokens", "4", "--json", env=here).stdout)
    assert [s["status"] for s in asked["spans"]] == ["hit"]


def test_ask_streams_the_answer_alone_to_stdout(here, docs) -> None:
    done = minipic("ask", QUESTION, "--docs", docs, "--max-tokens", "8", env=here)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "a.md" in done.stderr
    assert "a.md" not in done.stdout


@pytest.mark.parametrize("command", ["warm", "ask", "inspect"])
def test_wrong_key(served, docs, command) -> None:
    question = () if command == "warm" else (QUESTION, "--docs")
    done = minipic(command, *question, docs, env={"MINIPIC_BASE_URL": served, "MINIPIC_API_KEY": "no"})
    assert done.returncode == 1
    assert "API key" in line(done)


def test_server_down(docs) -> None:
    done = minipic("ask", QUESTION, "--docs", docs, env={"MINIPIC_BASE_URL": free_address()})
    assert done.returncode == 1
    assert "minipic serve" in line(done)


def test_stock_server(stock, docs) -> None:
    env = {"MINIPIC_BASE_URL": stock}
    asked = minipic("ask", QUESTION, "--docs", docs, "--max-tokens", "8", env=env)
    assert asked.returncode == 0
    assert asked.stdout.strip()
    assert "no MiniPIC plugin" in asked.stderr
    warmed = minipic("warm", docs, env=env)
    assert warmed.returncode == 1
    assert "no MiniPIC plugin" in warmed.stderr.strip().splitlines()[-1]
    assert "Traceback" not in warmed.stderr


def test_a_prompt_longer_than_the_model(here, tmp_path) -> None:
    (tmp_path / "long.txt").write_text(" ".join(f"word{i}" for i in range(2000)))
    done = minipic("ask", QUESTION, "--docs", tmp_path, env=here)
    assert done.returncode == 1
    assert "2048" in line(done)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("wide.txt", b"\xff\xfe\xff", "not valid utf-16"),
        ("image.md", b"\x89PNG\r\n\x1a\n\0\0\0", "binary file"),
        ("empty.txt", b"", "is empty"),
    ],
    ids=["utf-16", "binary", "empty"],
)
def test_unusable_files(here, tmp_path, name, data, says) -> None:
    (tmp_path / name).write_bytes(data)
    done = minipic("ask", QUESTION, "--docs", tmp_path / name, env=here)
    assert done.returncode == 1
    assert says in line(done)


def test_usage_errors(here, tmp_path) -> None:
    for arguments, says in (
        (("ask", " ", "--docs", tmp_path), "question is empty"),
        (("ask", QUESTION, "--docs", tmp_path / "nowhere"), "does not exist"),
        (("warm", tmp_path / "nowhere"), "does not exist"),
    ):
        done = minipic(*arguments, env=here)
        assert done.returncode == 2
        assert says in line(done)


def test_no_documents(here) -> None:
    done = minipic("ask", QUESTION, "--max-tokens", "4", env=here)
    assert done.returncode == 0
    assert "no documents" in done.stderr


def test_doctor_finds_the_server(here) -> None:
    done = minipic("doctor", "--json", env=here)
    assert done.returncode == 0
    found = {c["name"]: c["found"] for c in json.loads(done.stdout)["checks"]}
    assert MODEL in found["server"]
