"""Reading documents from disk."""

import io
import json
import os
from pathlib import Path

import pytest

from cli.pdf_files import pdf
from minipic_cli import console
from minipic_cli.documents import read_documents
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import Document
from minipic_sdk.testing import FakeServer


@pytest.fixture(autouse=True)
def _loud() -> None:
    console.set_quiet(False)


def test_files_keep_the_order_given_and_directories_are_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.md", "a.txt", "sub/c.rst"):
        (folder / name).write_text(f"text of {name}")
    single = tmp_path / "z.log"
    single.write_text("a named file may have any suffix")
    documents = read_documents([single, folder])
    names = [Path(d.name or "").name for d in documents]
    assert names == ["z.log", "a.txt", "b.md", "c.rst"]


def test_hidden_files_and_other_suffixes_of_a_directory_are_left_alone(tmp_path: Path) -> None:
    for name in ("a.txt", ".hidden.txt", "b.png", ".git/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    assert [d.name for d in read_documents([tmp_path])] == [str(tmp_path / "a.txt")]


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffhello".encode())
    assert read_documents([path])[0].text == "hello"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfe\xff", "not valid utf-16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary file"),
        (b" \n\t", "is empty"),
        (b"", "is empty"),
    ],
    ids=["utf16", "binary", "blank", "empty"],
)
def test_a_named_file_that_is_no_text_is_an_error(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(CLIError) as error:
        read_documents([path])
    assert says in str(error.value)
    assert str(path) in str(error.value)


def test_in_a_directory_it_is_left_out_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "b.txt").write_text("fine")
    assert len(read_documents([tmp_path])) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert "left out" in written.err
    assert "not valid utf-16" in written.err


def test_a_directory_without_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\0")
    with pytest.raises(CLIError, match="has no documents"):
        read_documents([tmp_path])


def test_a_path_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_documents([tmp_path / "nowhere"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("secret")
    path.chmod(0)
    with pytest.raises(CLIError, match="can't be read"):
        read_documents([path])


def test_html_other_encodings_and_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("charset_normalizer")
    latin = "Der Käse kommt über die Straße aus Österreich, schöne Grüße! " * 4
    (tmp_path / "a.html").write_text("<head><title>x</title></head><body><h1>One</h1><p>two</p></body>")
    (tmp_path / "b.txt").write_bytes(latin.encode("latin-1"))
    (tmp_path / "c.txt").write_bytes("three".encode("utf-16"))
    lines = [{"text": "four", "title": "Four", "name": "4", "public": True}, {"text": ""}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page, guessed, wide, line = read_documents([str(tmp_path)])
    assert page.text.strip() == "# One\n\ntwo"
    assert guessed.text == latin
    assert wide.text == "three"
    assert line == Document("four", title="Four", name="4", public=True)
    said = capsys.readouterr().err
    assert "b.txt is not UTF-8: read as" in said
    assert "d.jsonl line 2 is empty" in said
    with pytest.raises(CLIError, match="line 2 is empty"):
        read_documents([tmp_path / "d.jsonl"])


def test_globs_stdin_formats_and_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes("<p>é</p>".encode("latin-1"))
    documents = read_documents([f"{tmp_path}/*.log"], "html", "latin-1")
    assert [d.text.strip() for d in documents] == ["é", "é"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    assert [d.text for d in read_documents(["-"])] == ["piped"]


@pytest.mark.parametrize("name", ["a.pdf", "b.html", "c.txt", "d.txt", "e.md", "f.jsonl"])
def test_what_was_warmed_is_found(run, serve, tmp_path: Path, name: str) -> None:
    pytest.importorskip("pypdf")
    paragraphs = [f"Paragraph {i} of a book, about ships and tea. " * 8 for i in range(60)]
    book = "\n\n".join(f"# Chapter {i}\n\n{p}" if i % 5 == 0 else p for i, p in enumerate(paragraphs))
    data = {
        "a.pdf": pdf(["Hello from a page.", "And again."]),
        "b.html": "".join(f"<h2>{i}</h2><p>{p}</p>" for i, p in enumerate(paragraphs)).encode(),
        "c.txt": ("Schöne Grüße über die Straße! " * 9).encode("latin-1"),
        "d.txt": "\n\n".join(paragraphs).encode("utf-16"),
        "e.md": book.encode(),
        "f.jsonl": "\n".join(json.dumps({"text": t, "title": "T"}) for t in ("short", book)).encode(),
    }[name]
    (tmp_path / name).write_bytes(data)
    serve(FakeServer())
    warmed = json.loads(run("warm", tmp_path / name, "--json").out)
    told = json.loads(run("inspect", "Why?", "--docs", tmp_path / name, "--json").out)
    spans = [s for s in told["segments"] if s["kind"] == "span"]
    assert len(spans) == warmed["chunks"] > (0 if name[0] in "ac" else 1)
    assert {s["status"] for s in spans} == {"resident"}
