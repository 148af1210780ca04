"""Time to the first token under Poisson arrivals over HTTP: ``python -m minipic_cli.bench.trace.latency``.

Each engine's server is started in turn with the same options. Stock's capacity is what it answers of a burst; both get
the same prompts at the same moments at 50, 80 and 95 % of it. One token is generated, so the answer is the first token.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

from minipic_cli.bench import trace
from minipic_cli.bench.results import merge_rows
from minipic_cli.bench.trace.shapes import ANCHOR, Ask, make, metadata
from minipic_cli.servers import without_plugin

PORT = 8377
LOADS = (50, 80, 95)  # percent of stock's capacity
PATH = "/inference/v1/generate"


def body(ask: Ask, spans: bool, control: tuple[int, int, int]) -> bytes:
    """A request for one token."""
    params: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
    if spans:
        params["extra_args"] = {"minipic": json.dumps(metadata(ask.head, ANCHOR))}
    ids = ask.physical(control, 16) if spans else ask.plain()
    return json.dumps({"token_ids": ids, "sampling_params": params}).encode()


async def post(url: str, content: bytes) -> None:
    """One request on a connection of its own; raises on any answer but 200."""
    to = urlsplit(url)
    reader, writer = await asyncio.open_connection(to.hostname, to.port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {to.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    if b" 200 " not in answer.split(b"\r\n", 1)[0]:
        raise RuntimeError(answer.decode(errors="replace")[-500:])


async def poisson(url: str, bodies: Sequence[bytes], rate: float, seed: int) -> list[float]:
    """Seconds that each request took, sent at random moments ``rate`` times a second; all at once for rate 0."""
    r = random.Random(seed)
    begin, due = time.perf_counter(), 0.0
    took: list[float] = []

    async def one(content: bytes) -> None:
        sent = time.perf_counter()
        await post(url, content)
        took.append(time.perf_counter() - sent)

    tasks: list[asyncio.Task[None]] = []
    for content in bodies:
        due += r.expovariate(rate) if rate else 0.0
        await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(content)))
    await asyncio.gather(*tasks)
    return took


def measure(
    machine: trace.Machine, kind: str, loads: Sequence[int], capacity: float, seconds: float, burst: int, wait: float
) -> dict[str, Any]:
    """Start a server; its answer times at each load, and its capacity."""
    process, url, words = _serve(machine, kind), f"http://127.0.0.1:{PORT}", machine.vocabulary
    try:
        _await(url, process, wait)

        def bodies(count: int, seed: int) -> list[bytes]:
            return [body(ask, kind == "minipic", words.control) for ask in make("2wiki", count, words, seed=seed).asks]

        asyncio.run(poisson(url, bodies(max(16, burst // 8), 1), 0.0, 0))  # compiles and loads things
        begin = time.perf_counter()
        asyncio.run(poisson(url, bodies(burst, 2), 0.0, 0))
        found: dict[str, Any] = {"capacity": burst / (time.perf_counter() - begin)}
        capacity = capacity or found["capacity"]
        for load in loads:
            rate = capacity * load / 100
            took = asyncio.run(poisson(url, bodies(max(20, round(rate * seconds)), 10 + load), rate, load))
            found[str(load)] = took
            print(
                kind,
                load,
                f"{rate:.2f}/s p50 {_percentile(took, 50):.3f} p99 {_percentile(took, 99):.3f}",
                file=sys.stderr,
            )
        return found
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def rows(stock: dict[str, Any], ours: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """p99 of each load; ratio is stock / MiniPIC."""
    out: list[dict[str, Any]] = []
    for load in LOADS:
        if str(load) not in ours or str(load) not in stock:
            continue
        mine, theirs = ours[str(load)], stock[str(load)]
        value, baseline = _percentile(mine, 99), _percentile(theirs, 99)
        others = sorted(_percentile(theirs, p) / _percentile(mine, p) for p in (50, 90, 95))
        figures = {
            "ratio": round(baseline / value, 4),
            "value": round(1e3 * value, 2),
            "baseline": round(1e3 * baseline, 2),
        }
        spread = [round(others[0], 4), round(others[-1], 4)]
        unit = f"ms; ratio is stock / MiniPIC; spread is that of p50 to p95; {len(mine)} requests"
        out.append({"name": f"p99_ttft_{load}_vs_stock", **figures, "unit": unit, "spread": spread, **_about(command)})
    return out


def _about(command: str) -> dict[str, Any]:
    import torch
    from vllm import __version__

    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu, {os.cpu_count()} cores"
    versions = {"vllm": __version__, "torch": torch.__version__}
    return {"machine": machine, "versions": versions, "date": time.strftime("%Y-%m-%d"), "command": command}


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _serve(machine: trace.Machine, kind: str) -> "subprocess.Popen[bytes]":
    extra = ["--tokens-only", "--port", str(PORT), "--host", "127.0.0.1", "--disable-uvicorn-access-log"]
    options = dict(machine.options)
    environment = without_plugin()
    if kind == "minipic":
        from minipic_server import server_command

        command, ours = server_command(
            options.pop("model"), extra, control_tokens=machine.vocabulary.control, **options
        )
        environment |= {k: ours[k] for k in ("MINIPIC", "VLLM_PLUGINS")}
    else:
        options |= machine.stock_options
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *extra]
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                command.append(flag if value else f"--no-{flag[2:]}")
            else:
                command += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
        environment["VLLM_PLUGINS"] = ""  # no plugin at all
    environment |= {k: v for k, v in machine.environment.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True)


def _await(url: str, process: "subprocess.Popen[bytes]", wait: float) -> None:
    until = time.monotonic() + wait
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"the server did not start in {wait:.0f} s")


def main() -> None:
    """Both servers, one after the other; the rows on stdout and into ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m minipic_cli.bench.trace.latency")
    parser.add_argument("--machine", choices=["cpu", "h200"], default="cpu")
    parser.add_argument("--model", help="on the CPU: a directory instead of the bundled model")
    parser.add_argument("--seconds", type=float, default=40.0, help="at each load")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="percent of stock's capacity")
    parser.add_argument("--burst", type=int, default=None, help="prompts by which the capacity is measured")
    parser.add_argument("--wait", type=float, default=240.0, help="seconds for a server to start")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--raw", type=Path, default=Path("/tmp/minipic-latency"), help="results of each engine")
    parser.add_argument("--only", choices=["stock", "minipic"])
    parser.add_argument("--out", type=Path, default=None)
    a = parser.parse_args()
    machine = trace.h200() if a.machine == "h200" else trace.cpu(model=a.model, eager=a.eager)
    burst = a.burst or (400 if a.machine == "h200" else 40)
    a.raw.mkdir(parents=True, exist_ok=True)
    for kind in (a.only,) if a.only else ("stock", "minipic"):
        stock = a.raw / "stock.json"
        capacity = json.loads(stock.read_text())["capacity"] if kind == "minipic" else 0.0
        found = measure(machine, kind, [*map(int, a.loads.split(","))], capacity, a.seconds, burst, a.wait)
        (a.raw / f"{kind}.json").write_text(json.dumps(found))
    both = [json.loads(p.read_text()) for k in ("stock", "minipic") if (p := a.raw / f"{k}.json").exists()]
    if len(both) == 2:
        result = rows(both[0], both[1], "python -m minipic_cli.bench.trace.latency")
        if a.out is not None:
            merge_rows(a.out, result)
        print(json.dumps({"rows": result, "capacity": [b["capacity"] for b in both]}, indent=1))


if __name__ == "__main__":
    main()
