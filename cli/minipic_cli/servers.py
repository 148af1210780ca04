"""Servers as child processes: for the demo, the benchmarks and `doctor`."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from minipic_cli.console import note
from minipic_cli.errors import CLIError

START_S: Final = 900.0  # a loaded machine with a cold compile cache takes minutes
STOP_S: Final = 20.0
_PLUGIN: Final = ("MINIPIC", "VLLM_PLUGINS")  # switch the plugin on
_PR_SET_PDEATHSIG: Final = 1
_CONSEQUENCES: Final = ("Engine core init", "Worker failed", "WorkerProc init", "Failed core proc")
_CAUSE: Final = re.compile(r"\b(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


class Server:
    """A server on a free local port. Use it in a ``with`` block: leaving it stops the server."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str],
        port: int,
        remove: Sequence[str] = (),
    ) -> None:
        """Start it; ``wait_ready`` waits for it.

        Args:
            command: with its port in it.
            name: for messages.
            environment: variables to set beside this process's own.
            port: where it will listen.
            remove: variables to leave out.
        """
        self.url = f"http://127.0.0.1:{port}"
        self.name = name
        self.command = list(command)
        self._log = tempfile.NamedTemporaryFile(prefix="minipic-server-", suffix=".log", delete=False)
        kept = {k: v for k, v in os.environ.items() if k not in remove}
        # A session of its own: ^C ends the command, which then stops the server in order.
        self.process = subprocess.Popen(
            command,
            env={**kept, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and issubclass(kind, Exception)
        self.stop(keep_log=failed)
        if failed:
            note(f"the {self.name} server's log: {self.log_path}")

    @property
    def log_path(self) -> Path:
        """What it prints."""
        return Path(self._log.name)

    def wait_ready(self, tick: Callable[[float], None] = lambda _: None, limit_s: float = START_S) -> float:
        """Wait until it answers; returns the seconds that took.

        Args:
            tick: called with the seconds so far, a few times a second.
            limit_s: after which it counts as failed.

        Raises:
            CLIError: it ended, or did not come up in time.
        """
        begin = time.monotonic()
        # One client for all tries: making one costs a tenth of a second of a core that the server needs.
        with httpx.Client(base_url=self.url, timeout=5) as http:
            while (passed := time.monotonic() - begin) < limit_s:
                tick(passed)
                if self.process.poll() is not None:
                    raise CLIError(f"the {self.name} server did not start: {self.cause()}")
                try:
                    if http.get("/health").is_success:
                        return passed
                except httpx.HTTPError:
                    pass
                time.sleep(0.3)
        raise CLIError(f"the {self.name} server did not start within {limit_s:.0f} s")

    def cause(self) -> str:
        """The most telling line of its log."""
        return telling_line(self.log_path.read_text(errors="replace"))

    def stop(self, *, keep_log: bool = False) -> None:
        """End it and its children, by force if need be."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
            except ProcessLookupError:
                break
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue
        self._log.close()
        if not keep_log:
            self.log_path.unlink(missing_ok=True)


def telling_line(log: str) -> str:
    """The line of a log that says why its process ended: the last exception that isn't just a consequence."""
    found = [f"{kind}: {said}" for kind, said in _CAUSE.findall(log) if not said.startswith(_CONSEQUENCES)]
    lines = [line for line in log.splitlines() if line.strip()]
    return (found or lines or ["it said nothing"])[-1][:400]


def warm_when_up(url: str, paths: Sequence[str], api_key: str | None, *, quiet: bool) -> "subprocess.Popen[bytes]":
    """`minipic warm` beside a server that is starting in this process; it ends with the server."""
    command = [sys.executable, "-m", "minipic_cli", "warm", "--wait", str(int(START_S)), "--base-url", url, *paths]
    environment = without_plugin()
    if api_key:
        environment["MINIPIC_API_KEY"] = api_key
    # Not stdout: the server's own output may be read by a program.
    return subprocess.Popen(
        [*command, *(["--quiet"] if quiet else [])],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else sys.stderr.fileno(),
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def minipic_server(
    model: str | None, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Server:
    """`minipic serve` as a child. Spans may be asked of it; plain requests are served as stock vLLM does."""
    port = free_port()
    named = [] if model is None else [model]
    command = [sys.executable, "-m", "minipic_cli", "serve", *named, "--port", str(port), *options]
    return Server(
        command, name="MiniPIC", environment=environment or {}, port=port, remove=(*_PLUGIN, "MINIPIC_API_KEY")
    )


def stock_server(model: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Server:
    """Stock vLLM as a child, with no plugin loaded at all (I10)."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--enable-prompt-tokens-details", *options]
    # An empty allow-list: vLLM loads no general plugin, not even an installed one that is switched off.
    variables = {"VLLM_PLUGINS": "", **(environment or {})}
    return Server(command, name="stock vLLM", environment=variables, port=port, remove=(*_PLUGIN, "VLLM_API_KEY"))


def prove_stock(server: Server) -> None:
    """Make sure that a server has no plugin of ours: not on its command line, not in its routes, not in its metrics."""
    routes = httpx.get(f"{server.url}/v1/minipic/profile", timeout=30).status_code
    metrics = httpx.get(f"{server.url}/metrics", timeout=30).text
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes().split(b"\0")
    on = any(variable.startswith(b"MINIPIC=") for variable in environment)
    if routes != 404 or "minipic:" in metrics or on or any("minipic" in part for part in server.command[1:]):
        raise CLIError("the baseline is not stock vLLM: the MiniPIC plugin is active in it")


def without_plugin() -> dict[str, str]:
    """This process's environment, less what switches the plugin on."""
    return {k: v for k, v in os.environ.items() if k not in _PLUGIN}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _die_with_parent() -> None:
    """In the child, before it starts: end when the command dies without a chance to stop it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
