"""Set-up: what it says and does when something is missing. pip is replaced by a script that logs its arguments."""

import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_env.py"


def load():
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_python(tmp_path):
    """Makes an environment whose python runs ``body``, with all its arguments in $*, and logs them."""

    def make(body: str) -> Path:
        python = tmp_path / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/log\n{body}\n')
        python.chmod(0o755)
        return tmp_path / "venv"

    return make


def run(venv: Path, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k != "MINIPIC_TORCH_INDEX"}
    command = [sys.executable, str(SCRIPT), "--venv", str(venv)]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True)


NO_TORCH = """case "$*" in
*--index-url*) echo "Collecting torch" ;;
*torch.txt*) echo "ERROR: {}" >&2; exit 1 ;;
esac"""
ABSENT = ("No matching distribution found for torch==2.13.0+cpu", "ResolutionImpossible: for help visit")

pytestmark = pytest.mark.skipif(
    (sys.version_info[:2], platform.machine()) != ((3, 11), "x86_64"), reason="the pins are for 3.11 on x86_64"
)


def test_installs_everything_without_dependencies_then_does_nothing(fake_python, tmp_path):
    venv = fake_python("")
    first = run(venv)
    assert first.returncode == 0, first.stderr
    assert "setup [7/7]" in first.stdout
    log = (tmp_path / "log").read_text()
    for name in ("torch.txt", "cpu.txt", "dev.txt", "integrations.txt", "-e "):
        assert re.search(rf"^-m pip install --no-deps .*{name}", log, re.MULTILINE), name
    (tmp_path / "log").unlink()
    second = run(venv)
    assert (second.returncode, second.stdout) == (0, "")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("said", ABSENT)
def test_no_torch_on_the_index_names_the_variable(fake_python, said):
    done = run(fake_python(NO_TORCH.format(said)))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "setup: pip's configured package index has no CPU build of PyTorch: set MINIPIC_TORCH"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("said", ABSENT)
def test_torch_from_the_index_that_the_variable_names(fake_python, tmp_path, said):
    done = run(fake_python(NO_TORCH.format(said)), MINIPIC_TORCH_INDEX="file:///wheels")
    assert done.returncode == 0, done.stderr
    assert "taking it from MINIPIC_TORCH_INDEX" in done.stdout
    assert "torch.txt --index-url file:///wheels" in (tmp_path / "log").read_text()


def test_other_failures_of_pip_are_not_taken_for_a_missing_torch(fake_python):
    done = run(fake_python('echo "ERROR: no space left on device" >&2; exit 1'))
    assert done.stderr == "setup: pip failed: no space left on device\n"


def test_a_silent_pip_is_seen_to_live(fake_python, monkeypatch, capsys):
    venv = fake_python('echo "Collecting torch"; echo "Installing collected packages: torch"; sleep 6')
    module = load()
    monkeypatch.setattr(module, "SECONDS_A_LINE", 0.5)
    assert module.run_pip(venv / "bin" / "python", []) is None
    seconds = [int(s) for s in re.findall(r"unpacking 1 packages \((\d+) s\)", capsys.readouterr().out)]
    assert len(seconds) >= 2 and seconds[-1] > seconds[0]


def test_vllm_that_does_not_import_is_a_failure(fake_python):
    venv = fake_python('case "$1" in -c) exit 1 ;; esac')
    done = run(venv)
    assert done.returncode == 1
    assert "vLLM does not import" in done.stderr
    assert not (venv / ".minipic-setup").exists()


def test_what_the_server_imports_is_compiled_whatever_the_environment_says(fake_python, tmp_path):
    """Otherwise each of a server's processes compiles it anew: 50 s of a start on two cores."""
    body = f'case "$1" in -c) echo "kept=[$PYTHONDONTWRITEBYTECODE]" >> {tmp_path}/bytecode ;; esac'
    assert run(fake_python(body), PYTHONDONTWRITEBYTECODE="1").returncode == 0
    assert (tmp_path / "bytecode").read_text() == "kept=[]\n"


def test_another_python_is_refused(monkeypatch):
    module = load()
    monkeypatch.setattr(module.sys, "version_info", (3, 9, 1))
    with pytest.raises(module.SetupError, match="CPython 3.11 on Linux x86_64"):
        module.check_machine()
