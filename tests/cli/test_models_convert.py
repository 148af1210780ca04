"""Reading GGUF and writing a Hugging Face directory, on files small enough to check by hand."""

import json
import struct

import numpy as np
import pytest
import torch

from cli.gguf_files import F32, Q4_1, Q8_0, interleave, tiny_weights, write_gguf, write_tiny_model
from minipic_cli.models.gguf import GGUFError, GGUFFile
from minipic_cli.models.llama import convert, hugging_face_name, unpermute
from minipic_cli.models.weights_file import to_bfloat16


def test_q4_1_blocks_hold_their_first_half_in_the_low_nibbles(tmp_path):
    low, high = range(16), [15 - i for i in range(16)]
    block = struct.pack("<ee16B", 0.5, -3.0, *(a | b << 4 for a, b in zip(low, high, strict=True)))
    write_gguf(tmp_path / "x", {}, {"w": ((2, 32), Q4_1, block * 2)})
    with GGUFFile(tmp_path / "x") as gguf:
        values = gguf.load("w")
    expected = [q * 0.5 - 3.0 for q in (*low, *high)]
    assert values.dtype == np.float32
    assert values.tolist() == [expected, expected]


def test_q8_0_blocks(tmp_path):
    quants = [-128, *range(30), 127]
    write_gguf(tmp_path / "x", {}, {"w": ((32,), Q8_0, struct.pack("<e32b", 0.25, *quants))})
    with GGUFFile(tmp_path / "x") as gguf:
        assert gguf.load("w").tolist() == [q * 0.25 for q in quants]


def test_metadata_and_alignment(tmp_path):
    values = np.arange(6, dtype=np.float32)
    metadata = {"a": "text é", "b": 7, "c": True, "d": ["x", "yy"], "e": [1, 2], "f": 0.5}
    write_gguf(
        tmp_path / "x", metadata, {"odd": ((3,), F32, values[:3].tobytes()), "w": ((2, 3), F32, values.tobytes())}
    )
    with GGUFFile(tmp_path / "x") as gguf:
        assert gguf.metadata == metadata
        assert gguf.load("w").tolist() == values.reshape(2, 3).tolist()


@pytest.mark.parametrize("cut", [0, 3, 6, 20, 200, -1], ids=lambda n: f"{n}_bytes")
def test_cut_short(tmp_path, cut):
    path = tmp_path / "x"
    write_tiny_model(path)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    with pytest.raises(GGUFError, match=r"empty|ends inside|not a GGUF"):
        read_all(path)


def read_all(path):
    with GGUFFile(path) as gguf:
        for name in gguf.tensors:
            gguf.load(name)


def test_not_gguf(tmp_path):
    (tmp_path / "x").write_bytes(b"PK\3\4" + b"\0" * 100)
    with pytest.raises(GGUFError, match="not a GGUF file"):
        GGUFFile(tmp_path / "x")


def test_unknown_tensor_type(tmp_path):
    write_gguf(tmp_path / "x", {}, {"w": ((32,), 14, b"\0" * 26)})
    with GGUFFile(tmp_path / "x") as gguf, pytest.raises(GGUFError, match="'w' has GGML type 14"):
        gguf.load("w")


@pytest.mark.parametrize(("heads", "head"), [(1, 2), (3, 64), (9, 64)])
def test_unpermute_undoes_llama_cpp(heads, head):
    values = np.arange(heads * head * 5, dtype=np.float32).reshape(heads * head, 5)
    assert np.array_equal(unpermute(interleave(values, heads), heads), values)


def test_bfloat16_rounds_as_torch_does():
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    halfway = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0, 0x80000000], dtype=np.uint32)
    values = np.concatenate([bits, halfway]).view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16(values).view(np.int16), expected)


def test_unexpected_tensor_name():
    assert hugging_face_name("blk.3.ffn_up.weight") == "model.layers.3.mlp.up_proj.weight"
    with pytest.raises(GGUFError, match="unexpected tensor"):
        hugging_face_name("blk.3.ffn_up.bias")


def test_a_whole_model_loads_in_transformers_with_the_same_weights(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_tiny_model(tmp_path / "x.gguf")
    out = tmp_path / "hf"
    out.mkdir()
    seen = []
    with GGUFFile(tmp_path / "x.gguf") as gguf:
        convert(gguf, out, lambda: seen.append(1))
    state = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
    weights = tiny_weights()
    assert len(seen) == len(weights)
    for name, values in weights.items():
        assert torch.equal(state[name], torch.from_numpy(values)), name
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.convert_ids_to_tokens(tokenizer("cat 12<|im_end|>").input_ids) == [
        "c", "at", "\u0120", "1", "2", "<|im_end|>",
    ]  # fmt: skip
    assert json.loads((out / "config.json").read_text())["rms_norm_eps"] == 1e-5


@pytest.mark.parametrize(
    "changes",
    [{"general__architecture": "mamba"}, {"tokenizer__ggml__pre": "llama-bpe"}, {"tokenizer__ggml__pre": None}],
    ids=["architecture", "pre-tokenizer", "no pre-tokenizer"],
)
def test_other_models_are_refused(tmp_path, changes):
    write_tiny_model(tmp_path / "x.gguf", **changes)
    with GGUFFile(tmp_path / "x.gguf") as gguf, pytest.raises(GGUFError, match="only Llama models"):
        convert(gguf, tmp_path)
