"""I10: installed but not switched on is stock vLLM; switched on, every attention layer is ours or start-up fails."""

import os

import pytest

from invariants.engines import Engine
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

SPEC = PromptSpec((head(*words(9, 1)), span(*words(20, 2)), dep(5)), anchor=4)


def test_installed_but_off_changes_nothing(stock):
    """The stock baseline of these tests registers the plugin without the switch, as vLLM does once it is installed."""
    assert stock().proof == {"minipic": None, "foreign": [], "attention": 1}


def test_the_proof_would_notice_the_plugin(engine):
    from invariants.stock_worker import prove_stock

    proof = prove_stock(engine().llm)
    names = " ".join(proof["foreign"])
    for part in ("scheduler", "cpu.worker", "cpu.backend", "patches"):
        assert f"minipic_server.{part}" in names, proof["foreign"]


def test_every_layer_is_ours(engine):
    from minipic_server.cpu.backend import SpanCPUAttention

    layers = engine("granite").core.vllm_config.compilation_config.static_forward_context
    assert len(layers) == 4
    assert {type(layer.impl) for layer in layers.values()} == {SpanCPUAttention}


_KEPT: list[object] = []


@pytest.mark.parametrize("which", ["all", "one"])
def test_a_layer_that_is_not_ours_stops_the_start(checkpoint, monkeypatch, which):
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    from minipic_server.cpu import backend

    made = []

    def impl_cls():
        made.append(1)
        stock = which == "all" or len(made) == 2
        return CPUAttentionBackendImpl if stock else backend.SpanCPUAttention

    monkeypatch.setattr(backend.SpanCPUBackend, "get_impl_cls", staticmethod(impl_cls))
    with pytest.raises(ValueError, match="not MiniPIC's attention"):
        Engine(checkpoint())


def test_a_stock_engine_in_a_switched_on_process_refuses_span_requests(checkpoint):
    """MINIPIC=1 with plain ``LLM(...)``: opting in must not be ignored silently."""
    from vllm import LLM

    import minipic_server
    from invariants.engines import Ask

    minipic_server.engine_kwargs("unused", control_tokens=(1, 2, 3))  # switches on
    llm = LLM(
        str(checkpoint()),
        dtype="float32",
        max_model_len=512,
        num_gpu_blocks_override=80,
        enforce_eager=True,
        skip_tokenizer_init=True,
        block_size=32,
    )
    prompt, params = Ask(SPEC).engine_input()
    with pytest.raises(ValueError, match="not started for spans"):
        llm.generate([prompt], [params], use_tqdm=False)
    # Shutting it down would end the process's parallel groups, which the shared engines of other tests use.
    _KEPT.append(llm)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        ("", "minipic"),
        ("other", "other,minipic"),
        ("minipic,other", "minipic,other"),
    ],
    ids=["unset-stays-unset", "empty", "another", "already-there"],
)
def test_vllm_plugins_is_merged(monkeypatch, before, after):
    """Setting VLLM_PLUGINS makes an allow-list for all plugin groups: other plugins must not be lost."""
    from minipic_server.engine import switch_on

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if before is not None:
        monkeypatch.setenv("VLLM_PLUGINS", before)
    switch_on()
    assert os.environ.get("VLLM_PLUGINS") == after


@pytest.mark.parametrize("value", [None, "", "0"])
def test_other_values_of_the_switch_are_off(monkeypatch, value):
    from minipic_server.envs import SWITCH, switched_on

    monkeypatch.delenv(SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    assert not switched_on()
