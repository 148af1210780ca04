"""A server of its own: it warms a corpus when it starts, and is killed while everything is going on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minipic_cli.corpus.manifest import Manifest
from minipic_cli.models import default_model_dir
from minipic_cli.servers import Server, minipic_server
from minipic_sdk import APIConnectionError, MiniPIC
from over_http import KEY, LIMIT_S, OPTIONS, SMALL, minipic

TEXTS = {f"house-{n}.md": f"House {n} of the lane has {n + 2} windows and a red door." for n in range(3)}
ESSAY = [{"role": "user", "content": "Write a long essay about the sea."}]
ENDLESS = {"ignore_eos": True}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`minipic serve --warm`; the last test kills it."""
    folder = tmp_path_factory.mktemp("warm")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    environment = {**SMALL, "MINIPIC_MANIFEST": str(tmp_path_factory.mktemp("manifest") / "corpus.db")}
    options = (*OPTIONS, "--warm", str(folder))
    with minipic_server(str(default_model_dir()), options, environment) as server:
        server.wait_ready()
        yield server


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.05)


def test_serve_warm_fills_the_cache_at_start(mortal) -> None:
    with MiniPIC(base_url=mortal.url) as client:
        until(lambda: client.lookup(list(TEXTS.values())).count("resident") == len(TEXTS))
        assert client.lookup(["Nobody warmed this."]).count("resident") == 0


def warm_states(manifest: Path) -> list[str]:
    with Manifest(manifest, create=False) as known:
        return [entry.state for entry in known.entries()]


def test_killed_in_the_middle_of_everything(mortal, served, tmp_path) -> None:
    """Typed errors from a stream and a chat; `warm` says one line, keeps what was done, and goes on elsewhere."""
    folder, manifest = tmp_path / "docs", tmp_path / "corpus.db"
    folder.mkdir()
    for n in range(200):
        (folder / f"{n:03}.txt").write_text(f"Ship {n} sails at {n % 24} o'clock with {n * 3} crates of tea.")
    past = time.time() - 100
    for path in folder.iterdir():
        os.utime(path, (past, past))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MINIPIC")}
    command = [sys.executable, "-m", "minipic_cli", "warm", str(folder), "--manifest", str(manifest)]
    with MiniPIC(base_url=mortal.url) as client, ThreadPoolExecutor(1) as pool:
        stream = client.chat(ESSAY, max_tokens=1900, extra_body=ENDLESS, stream=True)
        chat = pool.submit(client.chat, ESSAY, max_tokens=1900, extra_body=ENDLESS)
        next(stream)
        warming = subprocess.Popen(
            [*command, "--base-url", mortal.url], env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until(lambda: manifest.exists() and "warm" in warm_states(manifest))
        assert not chat.done()
        assert warming.poll() is None
        os.killpg(mortal.process.pid, signal.SIGKILL)
        with pytest.raises(APIConnectionError):
            stream.result()
        assert stream.text
        with pytest.raises(APIConnectionError):
            chat.result(LIMIT_S)
        _, said = warming.communicate(timeout=LIMIT_S)
    assert warming.returncode == 1
    *notes, error = said.strip().splitlines()
    assert error.startswith(f"minipic: can't reach a server at {mortal.url}")
    said_first = {note.partition(":")[0] for note in notes[:-1]}
    assert notes[-1].startswith("stopped: ")
    assert said_first <= {"warming"}  # a slow machine has time for a line about the batch under way
    done = warm_states(manifest).count("warm")
    assert 0 < done < 200
    again = minipic(*command[3:], "--json", env={"MINIPIC_BASE_URL": served, "MINIPIC_API_KEY": KEY})
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["documents"], told["computed"], told["refilled"], told["rejected"]) == (200, 200, done, 0)
    assert told["unchanged"] >= done
    assert warm_states(manifest).count("warm") == 200
