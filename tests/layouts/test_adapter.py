# pyright: reportAttributeAccessIssue=false
"""A model with an adapter that a training script wrote: the engine serves it as transformers computes it, in every layout."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from invariants.checks import assert_differ, assert_exact
from invariants.engines import Ask
from layouts.methods import D, T, epic, spans
from layouts.test_exactness import laid_out
from minipic_cli.bench.quality.masked import MaskedModel
from minipic_sdk.layouts import Anchored, Block, Epic
from reference.corpus import words
from reference.hf import HFReference

pytestmark = pytest.mark.engine

LORA = Path(__file__).parents[2] / "examples/finetune_block_attention/lora.py"
GIVEN = [T(words(21, 1)), D(words(40, 10)), D(words(70, 11)), T(words(9, 2))]
LAYOUTS = {
    "block": (Block(), spans(GIVEN, 0)),
    "anchored": (Anchored(), spans(GIVEN, 4)),
    "epic": (Epic(8), epic(GIVEN, 4, 8)),
}


@pytest.fixture(scope="module")
def adapter(checkpoint, tmp_path_factory):
    """A directory as the example writes it, its matrices random and not small."""
    spec = importlib.util.spec_from_file_location("finetune_lora", LORA)
    lora = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lora)
    model = HFReference(checkpoint()).model
    torch.manual_seed(5)
    made = lora.Adapter(model, rank=8, alpha=16)
    for layer in made.layers.values():
        torch.nn.init.normal_(layer.b, std=0.1 / layer.b.shape[0] ** 0.5)
    directory = tmp_path_factory.mktemp("adapter")
    made.save(directory, "tiny")
    return directory, made, model


@pytest.fixture(scope="module")
def adapted(adapter, checkpoint):
    """The reference over weights with the adapter in them."""
    reference = HFReference(checkpoint())
    reference.model = MaskedModel(checkpoint(), adapter=adapter[0]).model
    return reference


def test_what_was_trained_is_what_is_loaded(adapter, adapted, checkpoint):
    """The layers beside the model and the file added to its weights give the same logits; switched off, the model's."""
    _, made, model = adapter
    assert {name.rpartition(".")[2] for name in made.layers} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    ids = torch.tensor([words(30, 3)])
    with torch.no_grad():
        for layer in made.layers.values():  # as they are stored
            layer.a.data, layer.b.data = (m.data.bfloat16().float() for m in (layer.a, layer.b))
        merged = adapted.model(ids).logits
        assert torch.allclose(model(ids).logits, merged, atol=1e-4)
        made.switch(False)
        plain = HFReference(checkpoint()).model(ids).logits
        assert torch.equal(model(ids).logits, plain)
    assert (plain - merged).abs().max() > 0.1


@pytest.mark.parametrize("name", LAYOUTS)
def test_served_as_computed(engine, reference, adapter, adapted, name):
    from vllm.lora.request import LoRARequest

    layout, spec = LAYOUTS[name]
    it = engine(enable_lora=True, max_loras=2, max_lora_rank=8)
    sent, _ = laid_out(layout, GIVEN)
    lora = LoRARequest("block", 1, str(adapter[0]))
    cold = it.ask(sent.prompt, meta=sent.meta, lora=lora)
    warm = it.ask(sent.prompt, meta=sent.meta, lora=lora)
    for answer in cold, warm:
        assert_exact(answer, adapted, spec, tolerance=2e-3)
    assert warm.cached == (len(sent.prompt) - 1) // 16 * 16
    base = it.run(Ask(sent.prompt, meta=sent.meta))[0]
    assert_exact(base, reference(), spec)
    assert_differ(base, cold)
