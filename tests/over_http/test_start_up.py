"""A server that is told to end while it starts."""

import os
import signal
import time

import psutil
import pytest

from minipic_cli.models import default_model_dir
from minipic_cli.servers import START_S, minipic_server
from over_http import OPTIONS, SMALL

UP = "Started server process"  # says uvicorn
ENDS_S = 10.0  # on a loaded machine; 0.1 s on an idle one


def left_of(session: int) -> list[str]:
    """Processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.name())
        except (psutil.Error, ProcessLookupError):
            continue
    return found


@pytest.mark.parametrize(
    ("said", "number", "code"),
    [
        ("non-default args", signal.SIGINT, 130),
        ("Initializing a V1 LLM engine", signal.SIGINT, 130),
        ("Starting to load model", signal.SIGTERM, 143),
        ("init engine", signal.SIGTERM, 143),
    ],
    ids=["configured", "engine", "worker", "warmed-up"],
)
def test_it_ends_at_once_with_all_its_processes(said, number, code) -> None:
    assert any(ends_at_once(said, number, code) for _ in range(3)), "it was up each time before it was told to end"


def ends_at_once(said: str, number: int, code: int) -> bool:
    """False: the line was seen too late, the server was up and ends in its own way."""
    with minipic_server(str(default_model_dir()), OPTIONS, {**SMALL, "VLLM_LOGGING_LEVEL": "INFO"}) as server:
        limit = time.monotonic() + START_S
        while said not in server.log_path.read_text(errors="replace"):
            assert server.process.poll() is None, server.cause()
            assert time.monotonic() < limit
            time.sleep(0.05)
        os.kill(server.process.pid, number)
        if UP in server.log_path.read_text(errors="replace"):
            return False
        assert server.process.wait(ENDS_S) == code
        limit = time.monotonic() + ENDS_S
        while left := left_of(server.process.pid):  # the resource tracker is the last
            assert time.monotonic() < limit, left
            time.sleep(0.05)
    return True
