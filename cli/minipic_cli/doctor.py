"""``minipic doctor``: is this environment fit to serve, and does a model answer with spans as it should?"""

import importlib.metadata
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from minipic_cli import console, options
from minipic_cli.connection import key_refused, make_client
from minipic_sdk.errors import AuthenticationError, MiniPICError, NotFoundError, SpansOffWarning


class Check(NamedTuple):
    """One thing looked at."""

    name: str
    ok: bool
    found: str


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A model directory to compare with stock vLLM on this machine."),
    ] = None,
    gate: Annotated[
        int,
        typer.Option("--gate", min=0, metavar="N", help="Questions of MODEL's verdict on layouts; 0: no verdict."),
    ] = 24,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check the installation; with MODEL, also that it runs with spans as it does without.

    For a model, stock vLLM and MiniPIC are started on it, one after the other, in float32: plain prompts must give
    the same tokens and log probabilities, spans the same whether they are computed or cached, in any order, and true
    answers must stay about as likely as with full attention. Exit code 1 if anything fails.
    Then real questions are asked under every layout, and the cheapest one that leaves the answers alone is written
    beside the model, for layout="auto" to follow.
    """
    if model is not None:
        options.check_model_directory(model)
    checks = environment(base_url, api_key)
    if model is not None and checks[0].ok:
        from minipic_cli.model_check import check_model

        checks += check_model(model)
        if gate and all(check.ok for check in checks):
            checks.append(_verdict(model, gate))
    ok = all(check.ok for check in checks)
    if as_json:
        console.print_json({"ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        _show(checks)
    if not ok:
        raise typer.Exit(1)


def _verdict(model: Path, items: int) -> Check:
    from minipic_cli.bench.quality import measure_gate
    from minipic_sdk.gate import GATE_FILE

    with console.waiting(f"asking {items} questions under every layout (a few minutes)"):
        found = measure_gate(model, items=items)
    path = model / GATE_FILE
    try:
        path.write_text(json.dumps(found.to_json(), indent=1) + "\n")
    except OSError as error:
        return Check("layout", False, f"{found.describe()}; not kept, {path} can't be written: {error.strerror}")
    return Check("layout", True, f"{found.describe()}; layout='auto' will follow it ({path})")


def environment(base_url: str | None, api_key: str | None) -> list[Check]:
    """What serving needs on this machine; vLLM first."""
    from minipic_cli.serve import VLLM_VERSION, on_cpu, vllm_version

    version = vllm_version()
    points = {
        group: any(point.name == "minipic" for point in importlib.metadata.entry_points(group=group))
        for group in ("vllm.general_plugins", "vllm.endpoint_plugins")
    }
    lacking = [group for group, there in points.items() if not there]
    checks = [
        Check(
            "vLLM",
            (version or "").split("+")[0] == VLLM_VERSION,
            f"{version or 'not installed'}; {VLLM_VERSION} is needed: `make setup`, or pip install 'minipic-sdk[server]'"
            if (version or "").split("+")[0] != VLLM_VERSION
            else f"{version}, for {'CPUs' if on_cpu() else 'GPUs'}",
        ),
        Check(
            "plugin entry points",
            not lacking,
            f"lacking {', '.join(lacking)}: pip install it again" if lacking else "both",
        ),
    ]
    if on_cpu():
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        checks.append(
            Check("C++ compiler", True, compiler or "none, so span attention runs in PyTorch, slower: install g++")
        )
    return [*checks, _default_model(), _server(base_url, api_key)]


def _default_model() -> Check:
    from minipic_cli.models import ModelError, model_path
    from minipic_cli.models.store import find_gguf

    if model_path().is_dir():
        return Check("default model", True, str(model_path()))
    try:
        return Check("default model", True, f"not converted yet; `minipic serve` makes it from {find_gguf().name}")
    except ModelError as error:
        return Check("default model", True, str(error))  # needed only where no model is named


def _server(base_url: str | None, api_key: str | None) -> Check:
    client = make_client(base_url, api_key, max_retries=0, timeout=5)
    try:
        with client, warnings.catch_warnings():
            warnings.simplefilter("ignore", SpansOffWarning)  # said below
            profile = client.profile()
        return Check(
            "server", True, f"{client.base_url} serves {profile.model} with blocks of {profile.block_size} tokens"
        )
    except AuthenticationError:
        return Check("server", False, key_refused(client, api_key))
    except NotFoundError:
        found = f"{client.base_url} has no MiniPIC plugin: serve with `minipic serve`"
    except MiniPICError as error:
        found = f"none reachable: {error}"
    return Check("server", base_url is None, found)  # only one that was named must be there


def _show(checks: list[Check]) -> None:
    table = console.table("check", "", "found")
    for check in checks:
        table.add_row(check.name, "ok" if check.ok else "FAILED", check.found, style=None if check.ok else "red")
    console.out().print(table, markup=False)
