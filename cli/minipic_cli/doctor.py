"""``minipic doctor``: is this environment fit to serve, and does a model answer with spans as it should?"""

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from minipic_cli import console, options
from minipic_cli.errors import CLIError
from minipic_sdk import MiniPIC
from minipic_sdk.errors import MiniPICError

VLLM: Final = "0.32.0"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A model directory to compare with stock vLLM on this machine."),
    ] = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check the installation; with MODEL, also that it runs with spans exactly as without."""
    checks = _environment(base_url, api_key)
    if model is not None:
        if not (model / "config.json").is_file():
            raise CLIError(f"{model} is not a model directory: it has no config.json")
        checks += _model(model)
    if as_json:
        console.print_json({"checks": checks, "ok": all(c["ok"] for c in checks)})
    else:
        table = console.table("check", "", "found")
        for check in checks:
            table.add_row(check["name"], "ok" if check["ok"] else "FAILED", check["found"])
        console.out().print(table)
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)


def _check(name: str, ok: bool, found: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found}


def _environment(base_url: str | None, api_key: str | None) -> list[dict[str, Any]]:
    from minipic_cli.serve import vllm_version

    version = vllm_version()
    found = version or "not installed: `make setup`, or pip install 'minipic-sdk[server]' on a GPU machine"
    points = {
        group: any(p.name == "minipic" for p in importlib.metadata.entry_points(group=group))
        for group in ("vllm.general_plugins", "vllm.endpoint_plugins")
    }
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    return [
        _check("vLLM", (version or "").startswith(VLLM), found),
        _check("plugin entry points", all(points.values()), ", ".join(g for g, ok in points.items() if ok) or "none"),
        _check("C++ compiler", True, compiler or "none: span attention on the CPU runs in PyTorch, slower"),
        _server(base_url, api_key),
    ]


def _server(base_url: str | None, api_key: str | None) -> dict[str, Any]:
    url = base_url or "http://127.0.0.1:8000"
    try:
        with MiniPIC(base_url=url, api_key=api_key, max_retries=0, timeout=5) as client:
            profile = client.profile()
        return _check("server", True, f"{url} serves {profile.model} with blocks of {profile.block_size} tokens")
    except MiniPICError as error:
        # Only a server that was named must be there.
        return _check("server", base_url is None, f"{url}: {error}")


def _model(model: Path) -> list[dict[str, Any]]:
    """Stock and MiniPIC engines side by side in float32."""
    from minipic_cli.bench.cpu import BenchmarkError, Engine
    from minipic_cli.lookups import lookups, passages
    from minipic_sdk import ModelProfile, Prompt

    profile = ModelProfile.from_directory(model, block_size=32)
    console.note("starting stock vLLM and MiniPIC on it")
    engines = [Engine(kind, model, 32, True) for kind in ("stock", "minipic")]
    try:
        try:
            for engine in engines:
                engine.answer()
        except BenchmarkError as error:
            return [_check("starts with spans", False, f"{error}; MINIPIC_DEBUG=1 shows why it was refused")]
        stock, ours = engines
        plain = [profile.encode(document.content) for document in passages(6)]
        same = sum(stock.ask("greedy", prompt=p) == ours.ask("greedy", prompt=p) for p in plain)
        item = lookups(passages(), 1)[0]
        texts = list(passages(6))
        agree = 0
        for order in (texts, texts[::-1], texts[1:] + texts[:1]):
            prompt = Prompt.compose(order, item.question, profile=profile)
            other = Prompt.compose(order[::-1], item.question, profile=profile)
            ours.ask("forget")
            cold = ours.ask("greedy", prompt=prompt.token_ids)
            warm = ours.ask("greedy", prompt=prompt.token_ids)
            ours.ask("forget")
            ours.ask("greedy", prompt=other.token_ids)
            agree += cold == warm == ours.ask("greedy", prompt=prompt.token_ids)
    finally:
        for engine in engines:
            engine.close()
    return [
        _check("plain prompts as stock", same == len(plain), f"{same} of {len(plain)} greedy continuations equal"),
        _check("cold, warm and reordered agree", agree == 3, f"{agree} of 3 prompts"),
    ]
