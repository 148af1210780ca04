"""Turn tables: each supported rotary class turns exactly by positions; the rest is refused by name."""

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

from minipic_server.rope import TurnTable, UnsupportedRotaryError, attach_turn_tables, turn_table

LENGTH = 4096
VARIANTS = {
    "default": {},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "partial": {"partial_rotary_factor": 0.5},
}


@pytest.fixture(autouse=True, scope="module")
def _vllm_config():
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def make_rotary(name, *, neox=True, dtype=torch.float32, head=64):
    from vllm.model_executor.layers.rotary_embedding import get_rope

    return get_rope(head, LENGTH, neox, {"rope_theta": 10000.0, **VARIANTS[name]}, dtype)


@pytest.mark.parametrize("neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("name", VARIANTS)
def test_turning_back_equals_rotating_at_the_earlier_position(name, neox):
    rotary = make_rotary(name, neox=neox)
    table = turn_table(rotary, positions=LENGTH)
    torch.manual_seed(0)
    q = torch.randn(5, 3 * 64)
    at = torch.tensor([7, 100, 1000, 2047, 4095])
    turns = torch.tensor([0, 99, 513, 2000, 4000])
    far, _ = rotary.forward_native(at, q.clone(), q.clone())
    near, _ = rotary.forward_native(at - turns, q.clone(), q.clone())
    back = table.turn(far.view(5, 3, 64), turns, sign=-1)
    torch.testing.assert_close(back, near.view(5, 3, 64), atol=2e-3, rtol=0)
    forth = table.turn(near.view(5, 3, 64), turns, sign=1)
    torch.testing.assert_close(forth, far.view(5, 3, 64), atol=2e-3, rtol=0)


def test_turning_keeps_the_length_of_a_query_under_yarn():
    table = turn_table(make_rotary("yarn"), positions=LENGTH)
    x = torch.randn(4, 2, 64)
    torch.testing.assert_close(table.turn(x, 1234, sign=-1).norm(dim=-1), x.norm(dim=-1))


def test_bfloat16_models_pass_the_check_against_their_own_table():
    table = turn_table(make_rotary("llama3", dtype=torch.bfloat16), positions=LENGTH)
    assert table.cos.dtype == torch.float32


def test_turn_zero_is_the_identity():
    table = TurnTable.from_frequencies(torch.rand(16), positions=8, neox=True)
    x = torch.randn(3, 1, 48).bfloat16()
    assert torch.equal(table.turn(x, 0, sign=-1), x)


def test_positions_beyond_the_models_own_table_are_refused():
    with pytest.raises(UnsupportedRotaryError, match="has 4096"):
        turn_table(make_rotary("default"), positions=LENGTH + 1, layer="a.b")


def test_a_rotary_class_outside_the_list_is_refused_by_name():
    from vllm.model_executor.layers.rotary_embedding import get_rope

    dynamic = get_rope(64, LENGTH, True, {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}, torch.float32)
    with pytest.raises(UnsupportedRotaryError, match="layers.3.*DynamicNTKScalingRotaryEmbedding"):
        turn_table(dynamic, positions=64, layer="layers.3")


def test_a_table_that_rotates_otherwise_is_refused():
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    odd = RotaryEmbedding(64, 64, 256, 10000.0, True, torch.float32)
    odd.cos_sin_cache = odd.cos_sin_cache.flip(0)
    with pytest.raises(UnsupportedRotaryError, match="other angles"):
        turn_table(odd, positions=256)


class Block(nn.Module):
    """The attention part of a vLLM decoder layer, as far as pairing looks at it."""

    def __init__(self, attention, rotary):
        super().__init__()
        self.attn = attention
        if rotary is not None:
            self.rotary_emb = rotary


@pytest.fixture
def attention(monkeypatch):
    from vllm.model_executor.layers import attention as module

    class FakeAttention(nn.Module):
        head_size = 64

    monkeypatch.setattr(module, "Attention", FakeAttention)
    return FakeAttention


def test_layers_that_share_a_rotary_module_share_the_table(attention):
    a, b = make_rotary("default"), make_rotary("llama3")
    model = nn.ModuleList([Block(attention(), a), Block(attention(), a), Block(attention(), b)])
    tables = attach_turn_tables(model, positions=128)
    assert list(tables) == ["0.attn", "1.attn", "2.attn"]
    assert tables["0.attn"] is tables["1.attn"] is model[1].attn.minipic_turn
    assert tables["2.attn"] is not tables["0.attn"]


def test_a_layer_without_rotary_is_refused_by_name(attention):
    model = nn.ModuleList([Block(attention(), make_rotary("default")), Block(attention(), None)])
    with pytest.raises(UnsupportedRotaryError, match=r"'1\.attn'"):
        attach_turn_tables(model, positions=128)


def test_a_model_without_attention_is_refused(attention):
    with pytest.raises(UnsupportedRotaryError, match="no attention layer"):
        attach_turn_tables(nn.Linear(2, 2), positions=128)
