"""ask, warm and inspect, and how the command ends, against a server inside the process."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from minipic_sdk import ModelProfile
from minipic_sdk.testing import FakeServer, fake_profile

QUESTION = "What colour are apples?"


def test_ask_writes_the_answer_to_stdout_and_the_rest_to_stderr(run, serve, docs: Path) -> None:
    serve(FakeServer(reply="Red."))
    done = run("ask", QUESTION, "--docs", docs)
    assert done.code == 0
    assert done.out == "Red.\n"
    assert "a.md" in done.err
    assert "prompt tokens" in done.err
    assert "computed" in done.err


def test_the_second_time_documents_are_hits_in_any_order(run, serve, docs: Path) -> None:
    serve(FakeServer(reply="Red."))
    run("ask", QUESTION, "--docs", docs)
    done = run("ask", QUESTION, "--docs", docs / "b.txt", docs / "a.md", "--json")
    assert [s["status"] for s in json.loads(done.out)["spans"]] == ["hit", "hit"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ask", QUESTION, "--layout", "foo"), "anchored, auto, block, epic, prefix"),
        (("inspect", "--layout", "prompt-cache"), "anchored, auto, block, epic, prefix"),
        (
            ("serve", "--block-size", "17"),
            "--block-size: block size 17: it must be 16, 32, 64 or another multiple of 16",
        ),
        (("serve", "--warm", "nowhere"), "nowhere does not exist"),
    ],
)
def test_wrong_options_are_usage_errors(run, arguments, says) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_ask_json(run, serve, docs: Path) -> None:
    serve(FakeServer(reply="Red."))
    told = json.loads(run("ask", QUESTION, "--docs", docs, "--json").out)
    assert told["answer"] == "Red."
    assert told["ttft_s"] is not None
    assert [s["name"].rsplit("/", 1)[-1] for s in told["spans"]] == ["a.md", "b.txt"]


def test_quiet_leaves_the_answer_alone(run, serve, docs: Path) -> None:
    serve(FakeServer(reply="Red."))
    for arguments in (("-q", "ask"), ("ask", "-q")):
        done = run(*arguments, QUESTION, "--docs", docs)
        assert (done.out, done.err) == ("Red.\n", "")


def test_without_documents_the_question_is_asked_alone(run, serve) -> None:
    serve(FakeServer(reply="Red."))
    done = run("ask", QUESTION)
    assert (done.code, done.out) == (0, "Red.\n")
    assert "no documents" in done.err


def test_warm_reports_and_does_nothing_twice(run, serve, docs: Path) -> None:
    serve(FakeServer())
    first = json.loads(run("warm", docs, "--json").out)
    assert (first["documents"], first["computed"], first["hit"]) == (2, 2, 0)
    again = run("warm", docs)
    assert "2 documents" in again.out
    assert "0 computed, 2 hit" in again.out
    assert again.code == 0


def test_warm_cuts_many_documents_into_requests(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    for i in range(150):
        (tmp_path / f"{i:03}.txt").write_text(f"document number {i}")
    assert json.loads(run("warm", tmp_path, "--json").out)["computed"] == 150
    assert sum(r.path.endswith("/spans") for r in server.requests) == 3


def test_interrupted_warming_says_how_far_it_came(run, serve, tmp_path: Path) -> None:
    server = serve(FakeServer())
    for i in range(100):
        (tmp_path / f"{i:02}.txt").write_text(f"document number {i}")
    answer, spans = server._handle, []

    def interrupt(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/spans"):
            spans.append(request)
            if len(spans) == 2:
                raise KeyboardInterrupt
        return answer(request)

    server._handle = interrupt
    serve(server)
    done = run("warm", tmp_path)
    assert done.code == 130
    assert "interrupted: 64 chunks" in done.err
    assert "Traceback" not in done.err


def test_inspect_shows_segments_blocks_and_what_would_hit(run, serve, docs: Path) -> None:
    serve(FakeServer())
    cold = run("inspect", QUESTION, "--docs", docs)
    assert cold.code == 0
    assert "0 of 2 spans would hit" in cold.out
    run("warm", docs)
    warm = run("inspect", QUESTION, "--docs", docs)
    assert "2 of 2 spans would hit" in warm.out
    assert re.search(r"^ +0  h+[A ]", warm.out, re.MULTILINE)


def test_inspect_json_adds_up(run, serve, docs: Path) -> None:
    serve(FakeServer())
    told = json.loads(run("inspect", QUESTION, "--docs", docs, "--json").out)
    tokens = told["tokens"]
    assert tokens["visible"] + tokens["pad"] + tokens["control"] == tokens["physical"]
    assert sum(s["blocks"] for s in told["segments"]) == -(-tokens["physical"] // told["block_size"])
    assert [s["kind"] for s in told["segments"]] == ["head", "span", "span", "dependent"]
    assert "Apples" in told["text"]


def test_inspect_takes_arguments_of_compose(run, serve, tmp_path: Path) -> None:
    serve(FakeServer())
    tool = {"name": "search", "description": "Find things."}
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps({"docs": ["One."], "question": "Why?", "tools": [tool], "memory": ["Likes tea."]}))
    told = json.loads(run("inspect", "--compose", path, "--json").out)
    assert next(s["name"] for s in told["segments"] if s["kind"] == "span") == "tool:search"
    assert len([s for s in told["segments"] if s["kind"] == "span"]) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[]", "not an object"), ('{"questoin": 1}', "unknown key 'questoin'")],
    ids=["broken", "list", "typo"],
)
def test_inspect_refuses_other_json(run, serve, tmp_path: Path, text: str, says: str) -> None:
    serve(FakeServer())
    path = tmp_path / "prompt.json"
    path.write_text(text)
    done = run("inspect", "--compose", path)
    assert done.code == 1
    assert says in done.err


def test_inspect_without_a_server_uses_the_bundled_profile(run, docs: Path, monkeypatch) -> None:
    monkeypatch.setattr("minipic_sdk._settings.DEFAULT_URL", "http://127.0.0.1:9")
    done = run("inspect", QUESTION, "--docs", docs, "--json")
    assert done.code == 0
    assert json.loads(done.out)["fingerprint"] == ModelProfile.default().fingerprint
    assert "no server" in done.err


def test_a_named_server_that_is_down_is_an_error(run, docs: Path) -> None:
    for command in (("ask", QUESTION, "--docs", docs), ("warm", docs), ("inspect", QUESTION, "--docs", docs)):
        done = run(*command, "--base-url", "http://127.0.0.1:9")
        assert done.code == 1
        assert "minipic serve" in done.err
        assert len(done.err.strip().splitlines()) == 1


def test_a_wrong_api_key_says_so(run, serve, docs: Path) -> None:
    serve(FakeServer(api_key="right"))
    missing, wrong = run("warm", docs), run("warm", docs, "--api-key", "wrong")
    assert (missing.code, wrong.code) == (1, 1)
    assert "is missing" in missing.err
    assert "is wrong" in wrong.err
    assert run("warm", docs, "--api-key", "right").code == 0


def test_a_key_that_is_wrong_is_no_missing_server(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer(api_key="right"))
    command = ("inspect", QUESTION, "--docs", docs)
    missing, wrong = run(*command), run(*command, "--api-key", "wrong")
    monkeypatch.setenv("MINIPIC_API_KEY", "old")
    set_wrong = run(*command)
    for done in (missing, wrong, set_wrong):
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "is missing: give --api-key or set MINIPIC_API_KEY" in missing.err
    assert "is wrong: see what --api-key says" in wrong.err
    assert "is wrong: see what MINIPIC_API_KEY says" in set_wrong.err
    assert run(*command, "--api-key", "right").code == 0


def test_doctor_tells_a_refused_key_from_a_missing_server(run, serve, monkeypatch) -> None:
    def server(*arguments: str) -> tuple[int, str]:
        done = run("doctor", "--json", *arguments)
        return done.code, next(c["found"] for c in json.loads(done.out)["checks"] if c["name"] == "server")

    monkeypatch.setattr("minipic_sdk._settings.DEFAULT_URL", "http://127.0.0.1:9")
    assert "none reachable" in server()[1]
    serve(FakeServer(api_key="right"))
    missing, wrong, right = server(), server("--api-key", "wrong"), server("--api-key", "right")
    assert (missing[0], wrong[0]) == (1, 1)
    assert "wants an API key and yours is missing: give --api-key or set MINIPIC_API_KEY" in missing[1]
    assert "is wrong: see what --api-key says" in wrong[1]
    assert "serves fake" in right[1]
    serve(FakeServer(kind="vllm"))
    assert "has no MiniPIC plugin" in server()[1]


def test_without_the_plugin_ask_degrades_and_warm_says_why_not(run, serve, docs: Path) -> None:
    serve(FakeServer(reply="Red.", kind="vllm"))
    asked = run("ask", QUESTION, "--docs", docs)
    assert (asked.code, asked.out) == (0, "Red.\n")
    assert "no MiniPIC plugin" in asked.err
    warmed = run("warm", docs)
    assert warmed.code == 1
    assert "no MiniPIC plugin" in warmed.err
    inspected = run("inspect", QUESTION, "--docs", docs)
    assert inspected.code == 0
    assert "would hit" not in inspected.out


def test_a_prompt_that_is_too_long_is_one_line(run, serve, docs: Path) -> None:
    from dataclasses import replace

    serve(FakeServer(profile=replace(fake_profile(), max_model_len=64)))
    done = run("ask", QUESTION, "--docs", docs)
    assert done.code == 1
    assert re.fullmatch(r"minipic: the prompt has \d+ tokens .* the model takes 64\n", done.err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ask", "  "), "question is empty"),
        (("ask",), "Missing argument"),
        (("ask", "why", "--docs", "/no/such/place"), "does not exist"),
        (("warm", "/no/such/place"), "does not exist"),
        (("warm",), "Missing argument"),
        (("ask", "why", "--max-tokens", "0"), "--max-tokens"),
        (("ask", "why", "--nonsense"), "No such option"),
        (("frobnicate",), "No such command"),
        (("serve", "./no-such-model"), "neither a model directory nor a hub id"),
        (("doctor", "/no/such/model"), "not a directory"),
        (("doctor", "/"), "no config.json"),
        (("inspect", "why", "--model", "/no/such/model"), "not a directory"),
        (("inspect", "why", "--model", "/"), "no config.json"),
        (("corpus", "split", ".", "--base-url", "nonsense"), "must begin with http:// or https://"),
        (("warm", "/dev/null", "--base-url", "http://a:b"), "is no URL: Invalid port"),
        (("inspect", "why", "--base-url", "nonsense"), "must begin with http:// or https://"),
        (("doctor", "--base-url", "nonsense"), "must begin with http:// or https://"),
        (("bench", "quality", "/"), "no config.json"),
        (("bench", "quality", "--questions", "/no/such/file"), "no such file"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_line_and_code_2(run, serve, arguments: tuple[str, ...], says: str) -> None:
    serve(FakeServer())
    done = run(*arguments)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""


def test_a_path_in_the_question_s_place_is_pointed_out(run, serve, docs: Path) -> None:
    serve(FakeServer())
    done = run("ask", docs / "a.md", "--docs", docs)
    assert done.code == 2
    assert "the question comes first" in done.err


def test_without_a_command_the_help_goes_to_stderr(run) -> None:
    done = run()
    assert done.code == 2
    assert "Commands:" in done.err
    assert done.out == ""


def test_version_and_help(run) -> None:
    assert re.fullmatch(r"minipic \d+\.\d+\.\d+\n", run("--version").out)
    for command in ("serve", "warm", "ask", "inspect", "doctor", "demo", "bench", "corpus"):
        done = run(command, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: minipic {command}")


def test_nothing_is_coloured_off_a_terminal(run, serve, docs: Path) -> None:
    serve(FakeServer())
    for command in (
        ("ask", QUESTION, "--docs", docs),
        ("inspect", QUESTION, "--docs", docs),
        ("warm", docs),
        ("frob",),
    ):
        done = run(*command)
        assert "\x1b" not in done.out + done.err


def test_an_unexpected_error_is_one_line_unless_debugging(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer())
    monkeypatch.setattr("minipic_cli.ask.served_profile", lambda client: 1 / 0)
    done = run("ask", QUESTION, "--docs", docs)
    assert done.code == 1
    assert done.err.startswith("minipic: unexpected ZeroDivisionError")
    assert len(done.err.strip().splitlines()) == 1
    monkeypatch.setenv("MINIPIC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("ask", QUESTION, "--docs", docs)


def test_interrupting_an_answer_keeps_what_was_written(run, serve, docs: Path, monkeypatch) -> None:
    serve(FakeServer(reply="Red apples."))
    written = []

    def write(text: str) -> int:
        written.append(text)
        if len(written) == 3:
            raise KeyboardInterrupt
        return len(text)

    monkeypatch.setattr("sys.stdout.write", write)
    assert run("ask", QUESTION, "--docs", docs).code == 130
    assert "".join(written) == "Red"


def test_the_reader_going_away_is_no_traceback(docs: Path) -> None:
    model = str(docs)  # never read: the pipe breaks when the help is written
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from minipic_cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", "--help", model], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


def test_interrupted_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time; print('importing', flush=True); time.sleep(600)")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    started = subprocess.Popen(
        [sys.executable, "-m", "minipic_cli", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "importing\n"
    started.send_signal(signal.SIGINT)
    assert started.communicate(timeout=300)[1] == ""
    assert started.returncode == 130
