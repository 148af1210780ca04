"""What importing does: nothing that wasn't asked for, and a clear word where a framework is missing."""

import importlib
import subprocess
import sys

import pytest

FRAMEWORKS = {
    "langchain": ("langchain_core", "LangChain", "langchain"),
    "llama_index": ("llama_index.core", "LlamaIndex", "llama-index"),
    "haystack": ("haystack", "Haystack", "haystack"),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_the_framework(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, said, extra = FRAMEWORKS[name]
    for loaded in [m for m in sys.modules if m.startswith(f"minipic_sdk.integrations.{name}")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    needs = rf"minipic_sdk\.integrations\.{name} needs {said}: pip install 'minipic-sdk\[{extra}\]'$"
    with pytest.raises(ImportError, match=needs):
        importlib.import_module(f"minipic_sdk.integrations.{name}")


def test_the_sdk_alone_loads_none_of_them() -> None:
    code = "import sys, minipic_sdk.client, minipic_sdk.integrations; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"langchain_core", "llama_index", "haystack", "openai"} & set(loaded)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_each_loads_only_its_own(name: str) -> None:
    code = f"import sys, minipic_sdk.integrations.{name} as m; assert all(hasattr(m, n) for n in m.__all__); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    others = {FRAMEWORKS[n][0].split(".")[0] for n in FRAMEWORKS if n != name}
    assert not (others | {"vllm"}) & set(loaded)
