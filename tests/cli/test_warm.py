"""``minipic warm`` and ``minipic corpus`` over a manifest, against a server inside the process."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from minipic_cli.corpus.manifest import Manifest
from minipic_sdk.testing import FakeServer
from minipic_sdk.tokenize.hf import HFTokenizer

LONG = "\n\n".join(f"# Part {i}\n\n" + f"Sentence {i} of a long text, number {i * 7}. " * 12 for i in range(40))


@pytest.fixture
def old():
    """Make files look as if they had not been touched lately, as files on disk usually do."""

    def aged(folder: Path) -> None:
        past = time.time() - 100
        for path in folder.rglob("*"):
            os.utime(path, (past, past))

    return aged


def _sent(server: FakeServer) -> list[str]:
    return [s["name"] for r in server.requests if r.path.endswith("/spans") for s in r.body["spans"]]


def _warm(run, *arguments) -> dict:
    return json.loads(run("warm", *arguments, "--json").out)


def test_unchanged_files_are_not_read_again(run, serve, docs: Path, old, monkeypatch) -> None:
    serve(FakeServer())
    old(docs)
    assert _warm(run, docs)["new"] == 2
    monkeypatch.setattr("minipic_cli.corpus.warming.texts", lambda *_: 1 / 0)
    again = _warm(run, docs)
    assert (again["unchanged"], again["hit"], again["computed"], again["bytes"]) == (2, 2, 0, 0)


def test_a_file_touched_just_now_is_read_again_but_not_tokenised(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer())
    for path in docs.iterdir():
        os.utime(path, (time.time() + 60, time.time() + 60))
    _warm(run, docs)
    monkeypatch.setattr("minipic_cli.corpus.chunking.Chunker.chunks", lambda *_: 1 / 0)
    again = _warm(run, docs)
    assert again["unchanged"] == 2
    assert again["bytes"] > 0


def test_changed_documents_are_replaced_and_vanished_ones_noted(run, serve, docs: Path, old) -> None:
    serve(FakeServer())
    old(docs)
    _warm(run, docs)
    (docs / "a.md").write_text("# Apples\n\nApples are green. " * 4)
    (docs / "b.txt").unlink()
    told = _warm(run, docs)
    assert (told["changed"], told["unchanged"], told["new"], told["vanished"], told["computed"]) == (1, 0, 0, 1, 1)
    states = {
        Path(e["source"]).name: e["state"] for e in map(json.loads, run("corpus", "ls", "--json").out.splitlines())
    }
    assert states == {"a.md": "warm", "b.txt": "vanished"}
    assert "1 documents forgotten" in run("corpus", "rm", "--vanished").out
    (docs / "b.txt").write_text("Bananas are back.")
    assert _warm(run, docs)["new"] == 1


def test_a_restarted_server_is_noticed_and_refilled(run, serve, docs: Path, old) -> None:
    server = serve(FakeServer())
    old(docs)
    _warm(run, docs)
    assert run("corpus", "verify").code == 0
    server.evict()
    gone = run("corpus", "verify")
    assert gone.code == 1
    assert "2 absent" in gone.out
    told = run("warm", docs)
    assert "2 computed (2 of them again: evicted, or lost by a restart), 0 hit, 0 rejected" in told.out
    assert told.out.count("evicted, or lost by a restart") == 3  # of each document, and in all
    assert "first seen" not in told.out
    assert run("corpus", "verify").code == 0


def test_a_dead_server_in_the_middle_loses_nothing(run, serve, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(150):
        (folder / f"{i:03}.txt").write_text(f"document number {i}")
    server, answer = FakeServer(), None
    answer = server._handle

    def dies(request: httpx.Request) -> httpx.Response:
        if len(_sent(server)) >= 64:
            raise httpx.ConnectError("Connection refused")
        return answer(request)

    server._handle = dies
    serve(server)
    stopped = run("warm", folder, "--json")
    assert stopped.code == 1
    assert "can't reach a server" in stopped.err
    assert "64 chunks" in stopped.err
    server._handle = answer
    serve(server)
    told = _warm(run, folder)
    assert (told["documents"], told["hit"], told["computed"]) == (150, 64, 86)


def test_ten_thousand_duplicates_are_one_span(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    path = tmp_path / "same.jsonl"
    path.write_text('{"text": "The very same words."}\n' * 10_000)
    told = _warm(run, path)
    assert (told["documents"], told["computed"], told["hit"]) == (10_000, 1, 9_999)
    assert told["distinct"]["blocks"] == 2
    assert len(_sent(server)) <= 64


def test_what_is_under_way_is_told_now_and_then(run, serve, tmp_path: Path, monkeypatch) -> None:
    serve(FakeServer())
    for i in range(100):
        (tmp_path / f"{i:02}.txt").write_text(f"document number {i}")
    monkeypatch.setattr("minipic_cli.console.SECONDS_A_LINE", -1.0)  # "now and then" is always
    told = ["warming: 0 chunks done, 64 under way", "warming: 64 chunks done, 36 under way"]
    assert run("warm", tmp_path).err.splitlines() == told
    assert run("warm", tmp_path, "--quiet").err == ""


def test_a_line_that_can_t_be_text_fails_alone(run, serve, tmp_path: Path) -> None:
    serve(FakeServer())
    (tmp_path / "a.jsonl").write_text('{"text": "half \\ud83d of a character"}\n{"text": "whole"}\n')
    (tmp_path / "b.txt").write_text("another document")
    done = run("warm", tmp_path / "a.jsonl", tmp_path / "b.txt", "--json")
    told = json.loads(done.out)
    assert (done.code, told["documents"], told["computed"]) == (1, 2, 2)
    assert [f for f in told["failures"] if "line 1 holds a lone surrogate" in f] == told["failures"] != []


def test_jsonl_names_titles_and_bad_lines(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    path = tmp_path / "d.jsonl"
    lines = [
        '{"name": "one", "text": "First.", "metadata": {"lang": "en"}}',
        "",
        '{"name": "one", "text": "Second of the same name."}',
        "not json",
        '{"title": "no text"}',
        '{"text": " "}',
        '{"text": "Titled.", "title": "Chapter"}',
    ]
    path.write_text("\n".join(lines))
    done = run("warm", path, "--json")
    told = json.loads(done.out)
    assert done.code == 1
    assert (told["documents"], told["failed"]) == (3, 3)
    assert [f.split("jsonl ")[1][:15] for f in told["failures"]] == [
        "line 4 is not J",
        'line 5 has no "',
        "line 6 is empty",
    ]
    assert len(done.err.strip().splitlines()) == 3
    assert _sent(server) == ["one", "one", f"{path}:7"]
    text = FakeServer().profile.tokenizer.decode(server.requests[-2].body["spans"][2]["token_ids"])
    assert text == "Chapter\nTitled.\n\n"


def test_lines_before_a_bad_end_of_a_file_are_warm(run, serve, tmp_path: Path, monkeypatch) -> None:
    serve(FakeServer())
    monkeypatch.setattr("minipic_cli.corpus.reading.MAX_LINE", 1 << 20)
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "One."}\n{"text": "Two."}\n' + '{"text": "' + "x" * (1 << 20))
    done = run("warm", path, "--json")
    assert (done.code, json.loads(done.out)["computed"]) == (1, 2)
    assert "line 3 is longer than 1 MiB" in done.err


def test_texts_of_new_lines_are_tokenised_together(run, serve, tmp_path: Path, monkeypatch) -> None:
    sizes = []
    serve(FakeServer())
    real = HFTokenizer.encode_batch
    counted = lambda tokenizer, texts: sizes.append(len(texts)) or real(tokenizer, texts)
    monkeypatch.setattr(HFTokenizer, "encode_batch", counted)
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"name": "{n}", "text": "Line {n}."}}\n' for n in range(270)))
    assert _warm(run, path)["computed"] == 270
    assert [n for n in sizes if n > 1] == [256, 14]
    del sizes[:]
    path.write_text(path.read_text().replace("Line 9.", "Line nine."))
    told = _warm(run, path)
    assert (told["changed"], told["unchanged"]) == (1, 269)
    assert sizes == [1]


def test_the_latest_spans_are_remembered(run, serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("minipic_cli.corpus.sending._SENT", 64)
    server = serve(FakeServer())
    path = tmp_path / "d.jsonl"
    # 64 is sent again soon after, 0 when two times as many as are remembered came in between.
    texts = [*range(128), 64, *range(128, 192), 0]
    path.write_text("".join(f'{{"name": "{i}", "text": "Line {n}."}}\n' for i, n in enumerate(texts)))
    told = _warm(run, path)
    assert (told["computed"], told["hit"]) == (192, 2)
    assert _sent(server) == [str(i) for i in range(len(texts)) if i != 128]


def test_long_documents_are_cut_and_an_edit_moves_one_chunk(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    path = tmp_path / "long.md"
    path.write_text(LONG)
    told = _warm(run, path)
    assert told["documents"] == 1
    assert told["chunks"] > 8
    assert told["computed"] == told["chunks"]
    path.write_text(LONG.replace("Sentence 20 of", "Phrase 20 of", 1))
    told = _warm(run, path)
    assert (told["changed"], told["computed"]) == (1, 1)
    assert _warm(run, path, "--chunk-tokens", "0")["chunks"] == 1
    assert f"{path}#2" in _sent(server)


def test_split_writes_the_chunks_that_warm_makes(run, serve, tmp_path: Path) -> None:
    serve(FakeServer())
    path, again = tmp_path / "long.md", tmp_path / "chunks.jsonl"
    path.write_text(LONG)
    chunks = _warm(run, path)["chunks"]
    again.write_text(run("corpus", "split", path).out)
    told = _warm(run, again)
    assert (told["documents"], told["hit"], told["computed"]) == (chunks, chunks, 0)


def test_dry_run_counts_and_computes_nothing(run, serve, docs: Path) -> None:
    server = serve(FakeServer(blocks=10))
    told = _warm(run, docs, "--dry-run")
    assert _sent(server) == []
    assert told["dry_run"] is True
    need = told["distinct"]
    assert need["blocks"] > 10
    assert need["kv_bytes"] == need["blocks"] * need["block_bytes"]
    assert need["fits"] is False
    assert "does NOT fit" in run("warm", docs, "--dry-run").out
    serve(FakeServer())
    assert "it fits" in run("warm", docs, "--dry-run").out
    assert not Path(os.environ["MINIPIC_MANIFEST"]).exists()


def test_what_is_under_way_is_said_by_its_name(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer())
    monkeypatch.setattr("minipic_cli.console.SECONDS_A_LINE", 0.0)
    assert run("warm", docs, "--dry-run").err == "looking up: 0 chunks done, 2 under way\n"
    assert run("warm", docs).err == "warming: 0 chunks done, 2 under way\n"


def test_dry_run_without_a_server_counts_for_the_bundled_model(run, docs: Path, monkeypatch) -> None:
    monkeypatch.setattr("minipic_sdk._settings.DEFAULT_URL", "http://127.0.0.1:9")
    done = run("warm", docs, "--dry-run")
    assert done.code == 0
    assert "no server" in done.err
    assert "2 would be computed" in done.out


def test_globs_and_formats(run, serve, docs: Path) -> None:
    server = serve(FakeServer())
    assert _warm(run, f"{docs}/*.md")["documents"] == 1
    (docs / "page").write_text("<p>one</p><p>two</p>")
    assert _warm(run, docs / "page", "--format", "html")["documents"] == 1
    assert "one\n\ntwo" in server.profile.tokenizer.decode(server.requests[-2].body["spans"][0]["token_ids"])
    missing = run("warm", f"{docs}/*.nothing")
    assert (missing.code, "matches nothing" in missing.err) == (2, True)


def test_files_of_other_kinds_are_counted_and_the_way_to_include_them_is_said(run, serve, docs: Path) -> None:
    server = serve(FakeServer())
    assert "left out" not in run("warm", docs).err
    for name in ("one.log", "two.LOG", "Makefile", ".hidden"):
        (docs / name).write_text(f"text of {name}")
    done = run("warm", docs, "--json")
    assert json.loads(done.out)["other_suffixes"] == {"": 1, ".log": 2}
    assert done.err == (
        "left out 3 files of other kinds: .log (2), no suffix (1); named ones are read as text, or as --format says: "
        f"minipic warm '{docs}/**/*.log'\n"
    )
    assert run("warm", docs, "--quiet").err == ""
    assert run("warm", f"{docs}/**/*.log").err == ""
    assert _sent(server)[-1] == f"{docs}/one.log"
    for i in range(9):
        (docs / f"x.{i}").write_text("")
    assert ".log (2), no suffix (1), .0 (1), .1 (1), .2 (1), 6 more suffixes;" in run("warm", docs).err


def test_stdin(run, serve, monkeypatch) -> None:
    import io

    server = serve(FakeServer())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"From a pipe.")))
    assert _warm(run, "-")["computed"] == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n{"text": "b"}\n')))
    assert _warm(run, "-", "--format", "jsonl")["computed"] == 2
    assert _sent(server)[0].startswith("stdin:")
    assert run("warm", "-", "-").code == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", "is a binary file"),
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"text first" + b"a" * 70_000 + b"\0\0", "is a binary file"),
    ],
    ids=["binary", "empty", "blank", "late NUL"],
)
def test_a_file_that_is_no_text(run, serve, tmp_path: Path, data: bytes, says: str) -> None:
    serve(FakeServer())
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    done = run("warm", path)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert says in done.err
    (tmp_path / "b.txt").write_text("fine")
    both = run("warm", tmp_path)
    assert both.code == 0
    assert "left out" in both.err


def test_one_bad_file_does_not_keep_the_others_from_being_warm(run, serve, docs: Path) -> None:
    serve(FakeServer())
    (docs / "c.txt").write_bytes(b"")
    done = run("warm", docs / "a.md", docs / "c.txt", docs / "b.txt", "--json")
    assert done.code == 1
    assert json.loads(done.out)["computed"] == 2
    assert done.err.count("\n") == 1


def test_a_sparse_file_of_two_gigabytes_is_refused_at_once(run, serve, tmp_path: Path) -> None:
    serve(FakeServer())
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    done = run("warm", path)
    assert (done.code, "is a binary file" in done.err) == (1, True)
    with path.open("r+b") as file:
        file.write(b"words " * 20_000)
    begun = time.monotonic()
    done = run("warm", path)
    assert (done.code, "is a binary file: it has NUL bytes" in done.err) == (1, True)
    assert time.monotonic() - begun < 60


def test_other_encodings(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    text = "Größe und Maß: für jede Übung eine Prüfung, so heißt es überall. " * 8
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode("latin-1"))
    guessed = run("warm", path)
    assert guessed.code == 0
    assert "read as" in guessed.err
    path.write_bytes(text.encode("utf-16"))
    assert run("warm", path).err == ""
    path.write_bytes(text.encode("latin-1"))
    assert run("warm", path, "--encoding", "latin-1").err == ""
    spans = [r.body["spans"][0]["token_ids"] for r in server.requests if r.path.endswith("/spans")]
    assert server.profile.tokenizer.decode(spans[-1]).strip() == text.strip()
    wrong = run("warm", path, "--encoding", "utf-8")
    assert (wrong.code, "not valid utf-8" in wrong.err) == (1, True)
    assert run("warm", path, "--encoding", "klingon").code == 2


def test_a_file_that_changes_while_it_is_read_is_read_again(run, serve, docs: Path, monkeypatch) -> None:
    from minipic_cli.corpus import reading

    serve(FakeServer())
    real, count = reading._decoded, []

    def decoded(file, name, *rest):
        got = real(file, name, *rest)
        count.append(name)
        if len(count) <= changes:
            with open(name, "a") as more:
                more.write("more ")
        return got

    monkeypatch.setattr(reading, "_decoded", decoded)
    changes = 1
    assert run("warm", docs / "a.md").code == 0
    assert len(count) == 2
    changes = 99
    done = run("warm", docs / "a.md")
    assert (done.code, "changed while it was read" in done.err, done.err.count("\n")) == (1, True, 1)


def test_a_corrupt_manifest_is_one_line(run, serve, docs: Path) -> None:
    serve(FakeServer())
    path = Path(os.environ["MINIPIC_MANIFEST"])
    path.write_bytes(b"no database at all, but long enough to be one" * 100)
    done = run("warm", docs)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "is corrupt" in done.err
    path.unlink()
    _warm(run, docs)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    done = run("warm", docs)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "is corrupt" in done.err


@pytest.mark.parametrize(
    ("change", "says", "remedy"),
    [
        ("UPDATE spans SET ids = x'01'", "is corrupt", "delete it"),
        ("PRAGMA user_version = 99", "is of version 99", "update MiniPIC"),
    ],
    ids=["ids", "version"],
)
def test_a_manifest_that_is_not_as_it_was_left(
    run, serve, docs: Path, old, change: str, says: str, remedy: str
) -> None:
    serve(FakeServer())
    old(docs)
    _warm(run, docs)
    with sqlite3.connect(os.environ["MINIPIC_MANIFEST"]) as db:
        db.execute(change)
    done = run("warm", docs)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert says in done.err
    assert remedy in done.err


def test_a_manifest_of_an_older_minipic_is_begun_afresh_by_warm_alone(run, serve, docs: Path, old) -> None:
    serve(FakeServer())
    old(docs)
    _warm(run, docs)
    with sqlite3.connect(os.environ["MINIPIC_MANIFEST"]) as db:
        db.executescript("DROP TABLE spans; CREATE TABLE contents(key BLOB PRIMARY KEY) WITHOUT ROWID")
        db.execute("PRAGMA user_version = 2")
    listed = run("corpus", "ls")
    assert (listed.code, listed.err.count("\n")) == (1, 1)
    assert "`minipic warm PATH...` makes it anew" in listed.err
    done = run("warm", docs, "--json")
    assert (done.code, json.loads(done.out)["new"]) == (0, 2)
    assert done.err.count("begun afresh") == 1
    again = run("warm", docs, "--json")
    assert (json.loads(again.out)["unchanged"], "afresh" in again.err) == (2, False)


def test_a_database_of_something_else_is_left_alone(run, serve, docs: Path) -> None:
    serve(FakeServer())
    path = Path(os.environ["MINIPIC_MANIFEST"])
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine(x)")
    done = run("warm", docs)
    assert (done.code, "something else" in done.err) == (1, True)


@pytest.mark.parametrize("how", ["sqlite", "folder"])
def test_a_disk_that_can_t_be_written_is_one_line(run, serve, docs: Path, monkeypatch, how: str) -> None:
    serve(FakeServer())
    if how == "folder":  # root may write everywhere, but not below a file
        monkeypatch.setenv("MINIPIC_MANIFEST", str(docs / "a.md" / "corpus.db"))
    else:
        real = sqlite3.connect
        monkeypatch.setattr(
            "minipic_cli.corpus.database.sqlite3.connect",
            lambda path, **k: real(f"file:{path}?mode=ro", uri=True, **k) if path else real(path, **k),
        )
        real(os.environ["MINIPIC_MANIFEST"]).execute("CREATE TABLE x(y)").connection.execute("DROP TABLE x")
    done = run("warm", docs)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "--no-manifest" in done.err
    assert run("warm", docs, "--no-manifest").code == 0


def test_a_disk_that_fills_up_between_lines_is_one_line(run, serve, tmp_path: Path, monkeypatch) -> None:
    serve(FakeServer())
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Manifest, "_insert", full)
    done = run("warm", path)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "the disk is full" in done.err


def test_lines_may_begin_with_a_byte_order_mark_and_are_listed_in_their_order(run, serve, tmp_path: Path) -> None:
    serve(FakeServer())
    path = tmp_path / "lines.jsonl"
    lines = [json.dumps({"name": f"p{n}", "text": f"line {n}"}) for n in range(12)]
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert _warm(run, path)["new"] == 12
    listed = [json.loads(line) for line in run("corpus", "ls", "--json").out.splitlines()]
    assert [e["source"] for e in listed] == [f"{path}#p{n}" for n in range(12)]


def test_two_at_once_on_one_manifest(serve, run, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i:03}.txt").write_text(f"document number {i}")
    code = (
        "import sys; from functools import partial; from minipic_cli import connection, main;"
        "from minipic_sdk import MiniPIC; from minipic_sdk.testing import FakeServer;"
        "connection.MiniPIC = partial(MiniPIC, http_client=FakeServer().http_client());"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, "warm", str(folder), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert json.loads(out)["documents"] == 300
    with Manifest(Path(os.environ["MINIPIC_MANIFEST"])) as known:
        assert [e.state for e in known.entries()] == ["warm"] * 300


def test_a_locked_manifest_says_so(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer())
    _warm(run, docs)
    monkeypatch.setattr("minipic_cli.corpus.database._BUSY_S", 0.2)
    holder = sqlite3.connect(os.environ["MINIPIC_MANIFEST"], isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    done = run("warm", docs)
    holder.execute("ROLLBACK")
    assert (done.code, "locked by another process" in done.err) == (1, True)


def test_salts_are_kept_apart_and_not_written_down(run, serve, docs: Path) -> None:
    serve(FakeServer())
    _warm(run, docs, "--cache-salt", "very secret")
    assert _warm(run, docs)["computed"] == 2
    assert b"very secret" not in Path(os.environ["MINIPIC_MANIFEST"]).read_bytes()
    other = run("corpus", "verify", "--cache-salt", "very secret")
    assert other.code == 0
    assert "2 documents are of another" in other.err


def test_waiting_for_a_server(run, serve, docs: Path, monkeypatch) -> None:
    server = serve(FakeServer())
    monkeypatch.setattr("minipic_cli.warm._POLL_S", 0.01)
    monkeypatch.setattr("minipic_sdk._flow.MIN_DELAY", 0.0)
    server.fail_next(*[httpx.ConnectError("Connection refused")] * 6)
    assert run("warm", docs, "--wait", "30").code == 0


def test_a_wait_is_announced_and_its_end_is_told(run, docs: Path, monkeypatch) -> None:
    """By a clock on which only the pauses take time: the first attempt alone may take longer than half a second."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("minipic_sdk._flow.MIN_DELAY", 0.0)
    monkeypatch.setattr("minipic_cli.warm.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    command = ("warm", docs, "--wait", "2.5", "--base-url", "http://127.0.0.1:9")
    done = run(*command)
    waiting, end = done.err.splitlines()
    assert done.code == 1
    assert waiting == "waiting for the server at http://127.0.0.1:9 (up to 2.5 s)"
    assert "http://127.0.0.1:9 is not up after 2.5 s" in end
    assert slept == [1.0, 1.0, 0.5]
    quiet = run(*command, "--quiet")
    assert (quiet.code, quiet.err.count("\n"), "is not up after 2.5 s" in quiet.err) == (1, 1, True)


def test_show_ls_and_rm(run, serve, docs: Path) -> None:
    serve(FakeServer())
    assert "there is no manifest" in run("corpus", "ls").err
    _warm(run, docs)
    listed = run("corpus", "ls")
    assert "2 documents" in listed.out
    assert "1 documents" in run("corpus", "ls", "*.md").out
    shown = json.loads(run("corpus", "show", docs / "a.md", "--json").out)[0]
    assert shown["tokens"] == sum(s["tokens"] for s in shown["spans"])
    assert run("corpus", "show", "nothing").code == 1
    assert run("corpus", "rm").code == 2
    assert "1 documents forgotten" in run("corpus", "rm", docs / "a.md").out
    assert "1 documents" in run("corpus", "ls").out
    assert run("corpus", "rm", "--all").code == 0
    with sqlite3.connect(os.environ["MINIPIC_MANIFEST"]) as db:
        for table in ("documents", "spans", "files"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_interrupting_a_process_ends_it_with_130(docs: Path) -> None:
    code = "import sys; from minipic_cli.main import main; sys.exit(main(sys.argv[1:]))"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        arguments = [sys.executable, "-c", code, "warm", str(docs), "--base-url", url]
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
        connection, _ = listening.accept()  # it asks, and is never answered
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
        connection.close()
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_pinning_and_a_time_to_live(run, serve, docs: Path, old) -> None:
    server = serve(FakeServer())
    old(docs)
    assert _warm(run, docs, "--ttl", "60")["computed"] == 2
    assert {r.body.get("ttl") for r in server.requests if r.path.endswith("/spans")} == {60.0}
    assert "warm, pinned" in run("corpus", "ls").out
    assert _warm(run, docs, "--pin")["hit"] == 2
    assert [e["expires_at"] for e in map(json.loads, run("corpus", "ls", "--json").out.splitlines())] == [None, None]
    server.evict()
    assert _warm(run, docs)["refilled"] == 2
    assert "pinned" not in run("corpus", "ls").out  # a restart drops pins
    assert _warm(run, docs, "--pin")["hit"] == 2
    assert "2 documents unpinned" in run("corpus", "unpin").out
    assert "pinned" not in run("corpus", "ls").out
    assert server.requests[-1].path.endswith("/unpin")
    assert run("warm", docs, "--ttl", "0").code == 2


def test_what_can_t_be_pinned_is_rejected(run, serve, docs: Path) -> None:
    serve(FakeServer(blocks=20))
    done = run("warm", docs, "--pin", "--json")
    told = json.loads(done.out)
    assert done.code == 1
    assert (told["computed"], told["rejected"]) == (1, 1)
    assert "pinned spans may take 10 KV blocks" in told["rejections"][0]["reason"]
