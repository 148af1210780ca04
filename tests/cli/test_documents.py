"""Reading documents from disk."""

import os
from pathlib import Path

import pytest

from minipic_cli import console
from minipic_cli.documents import read_documents
from minipic_cli.errors import CLIError, UsageError


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
        (b"caf\xe9 au lait", "not valid UTF-8 (byte 0xe9 at offset 3)"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary file"),
        ("text".encode("utf-16"), "not valid UTF-8"),
        (b" \n\t", "is empty"),
        (b"", "is empty"),
    ],
    ids=["latin1", "binary", "utf16", "blank", "empty"],
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
    assert "not valid UTF-8" in written.err


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
