"""``minipic demo``: the main job, start to finish, on this machine."""

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import typer

from minipic_cli import console, options
from minipic_cli.errors import CLIError
from minipic_cli.lookups import passages
from minipic_cli.models import ensure_default_model
from minipic_sdk import Document, MiniPIC, Prompt

ORDERS: Final = 3
DOCUMENTS: Final = 8
ANSWER_TOKENS: Final = 24
START_SECONDS: Final = 300  # of the server, at most
_QUESTION: Final = "What does the text say about exceptions?"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(demo)


def demo(
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve the bundled model, warm documents, ask in changing orders; compare with plain prompts."""
    begin = time.monotonic()
    model = ensure_default_model()
    with _server(str(model)) as url, MiniPIC(base_url=url, max_retries=0) as client:
        documents = [Document(text, name=f"doc {i + 1}") for i, text in enumerate(passages(DOCUMENTS))]
        console.note(f"warming {DOCUMENTS} documents")
        warmed = client.warm(documents)
        result: dict[str, Any] = {
            "warmed": {"documents": len(documents), "tokens": warmed.tokens, "blocks": warmed.blocks},
            "orders": list(_orders(client, documents)),
        }
        result["seconds"] = round(time.monotonic() - begin, 1)
    if as_json:
        console.print_json(result)
    else:
        _show(result)


def _orders(client: MiniPIC, documents: list[Document]) -> Iterator[dict[str, Any]]:
    random_ = random.Random(7)
    order = list(documents)
    profile = client.profile()
    for _ in range(ORDERS):
        random_.shuffle(order)
        console.note("asking in the order " + ", ".join((d.name or "?").removeprefix("doc ") for d in order))
        row: dict[str, Any] = {"order": [d.name for d in order]}
        for kind, layout in (("plain", "prefix"), ("minipic", "anchored")):
            prompt = Prompt.compose(order, _QUESTION, profile=profile, layout=layout)
            start = time.perf_counter()
            first = None
            with client.generate(prompt, max_tokens=ANSWER_TOKENS, temperature=0, stream=True) as stream:
                for _chunk in stream:
                    first = first or time.perf_counter() - start
                answer = stream.result()
            row[kind] = {
                "ttft_ms": round(1000 * (first or 0), 1),
                "prompt_tokens": answer.usage.prompt_tokens,
                "cached_tokens": answer.usage.cached_tokens,
                "answer": " ".join(answer.text.split()),
            }
        yield row


@contextmanager
def _server(model: str) -> Iterator[str]:
    """A MiniPIC server of our own on a free port; ended with us."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "4096"]
    # Nothing else runs here, so the engine may have every core; compiling would take longer than the demo.
    environment = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "2", **os.environ}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "minipic_cli", "serve", model, "--enforce-eager", *arguments],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: "subprocess.Popen[Any]", url: str, log: IO[str]) -> None:
    import httpx

    console.note("starting the server (about 40 s)")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            lines = [line.strip() for line in log.read().splitlines() if line.strip()]
            raise CLIError(f"the server ended while starting: {lines[-1] if lines else 'it said nothing'}")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise CLIError(f"the server was not ready after {START_SECONDS} s")


def _show(result: dict[str, Any]) -> None:
    columns = ("documents in order", "prompt", "cached tokens", "time to first token", "answer")
    table = console.table(*columns, right=("cached tokens", "time to first token"))
    for row in result["orders"]:
        order = " ".join(name.removeprefix("doc ") for name in row["order"])
        for kind in ("plain", "minipic"):
            got = row[kind]
            cached = f"{got['cached_tokens']} of {got['prompt_tokens']}"
            table.add_row(order, kind, cached, f"{got['ttft_ms']:.0f} ms", got["answer"][:48])
            order = ""
    console.out().print(table)
    ratio = statistics.median(r["plain"]["ttft_ms"] / r["minipic"]["ttft_ms"] for r in result["orders"])
    console.out().print(f"time to first token in a new order: {ratio:.1f} times shorter")
    console.out().print(f"{result['seconds']:.0f} s in all")
