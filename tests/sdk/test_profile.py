"""Profiles: derived from a directory, carried as JSON, compared by fingerprint."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minipic_sdk import ControlTokens, ModelProfile, ProfileError
from minipic_sdk.control import choose_control_tokens
from minipic_sdk.fingerprint import explain_mismatch
from minipic_sdk.model_files import MAX_ANCHOR, derive_anchor
from minipic_sdk.template import PLAIN_TEMPLATE
from minipic_sdk.testing import fake_profile
from minipic_sdk.tokenize.base import AddedToken


@pytest.fixture
def directory(tmp_path: Path, smol: ModelProfile) -> Path:
    """The bundled model's directory without its weights."""
    (tmp_path / "tokenizer.json").write_text(smol.tokenizer_spec.data)
    write(tmp_path, "tokenizer_config.json", {**smol.template_variables, "chat_template": smol.chat_template})
    write(tmp_path, "config.json", {"max_position_embeddings": 8192, "vocab_size": 49152, "bos_token_id": 1})
    write(tmp_path, "generation_config.json", {"eos_token_id": [2], "pad_token_id": 2})
    return tmp_path


def write(path: Path, name: str, body: Any) -> None:
    (path / name).write_text(json.dumps(body))


def test_a_directory_and_the_bundled_profile_agree(directory: Path, smol: ModelProfile) -> None:
    found = ModelProfile.from_directory(directory, model="SmolLM2-135M-Instruct")
    assert found == smol
    assert found.fingerprint == smol.fingerprint
    assert found.control_tokens == ControlTokens(3, 4, 5)
    assert smol.tokenizer.decode(found.anchor_token_ids) == "<|im_start|>system\n"
    assert (found.eos_token_ids, found.max_model_len, found.block_size) == ((2,), 8192, 16)


def test_json_round_trip(smol: ModelProfile) -> None:
    body = json.loads(json.dumps(smol.to_json()))
    assert ModelProfile.from_json(body) == smol
    assert body["fingerprint"] == smol.fingerprint
    assert body["control_tokens"] == {"ssep": 3, "pdep": 4, "pad": 5}
    for key in ("model", "block_size", "anchor_token_ids", "layouts", "chat_template", "tokenizer"):
        assert key in body


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": None}, "not readable"),
        ({"control_tokens": {"ssep": 1}}, "not readable"),
        ({"tokenizer": {"kind": "sentencepiece"}}, "unknown tokenizer"),
        ({"control_tokens": {"ssep": 5, "pdep": 5, "pad": 6}}, "not usable"),
        ({"control_tokens": {"ssep": 1, "pdep": 5, "pad": 6}}, "the chat template uses '<|im_start|>'"),
    ],
)
def test_broken_json(smol: ModelProfile, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        ModelProfile.from_json({**smol.to_json(), **change})
    with pytest.raises(ProfileError, match="lacks 'model'"):
        ModelProfile.from_json({})


def test_formatting_of_the_tokenizer_file_does_not_count(directory: Path) -> None:
    before = ModelProfile.from_directory(directory).fingerprint
    body = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps(body, indent=2))
    assert ModelProfile.from_directory(directory).fingerprint == before


def test_every_part_of_the_fingerprint_is_explained(smol: ModelProfile) -> None:
    changes: dict[str, dict[str, Any]] = {
        "the block size changed from 16 to 32": {"block_size": 32},
        "the chat template": {"chat_template": smol.chat_template + " "},
        "the control tokens changed from 3.4.5 to 6.7.8": {"control_tokens": ControlTokens(6, 7, 8)},
        "the anchor": {"anchor_token_ids": (1,)},
        "the plugin version changed from 0.1.0 to 9.9": {"plugin_version": "9.9"},
        "the tokenizer": {"tokenizer_spec": fake_profile().tokenizer_spec},
    }
    for said, change in changes.items():
        other = replace(smol, **change)
        (why,) = explain_mismatch(smol.fingerprint, other.fingerprint)
        assert why.startswith(said)
    assert explain_mismatch(smol.fingerprint, smol.fingerprint) == ()
    assert "another kind" in explain_mismatch("abc", smol.fingerprint)[0]
    same_kv = replace(smol, model="other name", max_model_len=4)
    assert same_kv.fingerprint == smol.fingerprint


def test_missing_and_broken_files(directory: Path) -> None:
    with pytest.raises(ProfileError, match="not a directory"):
        ModelProfile.from_directory(directory / "nowhere")
    (directory / "config.json").write_text("{")
    with pytest.raises(ProfileError, match=r"config\.json is not readable"):
        ModelProfile.from_directory(directory)
    (directory / "config.json").write_text("[]")
    with pytest.raises(ProfileError, match="does not hold a JSON object"):
        ModelProfile.from_directory(directory)
    (directory / "config.json").unlink()
    with pytest.raises(ProfileError, match=r"config\.json does not exist"):
        ModelProfile.from_directory(directory)


def test_a_directory_without_tokenizer_or_length(directory: Path) -> None:
    write(directory, "config.json", {})
    with pytest.raises(ProfileError, match="pass max_model_len"):
        ModelProfile.from_directory(directory)
    assert ModelProfile.from_directory(directory, max_model_len=99).max_model_len == 99
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ProfileError, match=r"no tokenizer\.json and no tiktoken"):
        ModelProfile.from_directory(directory)


def test_where_the_chat_template_comes_from(directory: Path, smol: ModelProfile) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "from the list"}]
    write(directory, "tokenizer_config.json", {**smol.template_variables, "chat_template": named})
    assert ModelProfile.from_directory(directory).chat_template == "from the list"
    write(directory, "chat_template.json", {"chat_template": "from json"})
    assert ModelProfile.from_directory(directory).chat_template == "from json"
    (directory / "chat_template.jinja").write_text("from jinja")
    assert ModelProfile.from_directory(directory).chat_template == "from jinja"


def test_a_base_model_without_template(directory: Path, smol: ModelProfile) -> None:
    write(directory, "tokenizer_config.json", {"bos_token": {"content": "<|endoftext|>"}})
    profile = ModelProfile.from_directory(directory)
    assert profile.chat_template == PLAIN_TEMPLATE
    assert profile.anchor_token_ids == ()  # its tokenizer puts no BOS before a text
    body = json.loads(smol.tokenizer_spec.data)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                "pair": [], "special_tokens": {}}  # fmt: skip
    write(directory, "tokenizer.json", {**body, "post_processor": template})
    assert ModelProfile.from_directory(directory).anchor_token_ids == (0,)


def test_control_tokens_are_reserved_ones_first(smol: ModelProfile) -> None:
    def choose(*contents: str, used: tuple[int | str, ...] = (), template: str = "") -> tuple[int, ...]:
        added = [AddedToken(i, c) for i, c in enumerate(contents)]
        return tuple(choose_control_tokens(added, template=template, used=used, vocab_size=99))

    names = ("<s>", "</s>", "<fim>", "<|reserved_0|>", "<|vision_pad|>", "<|reserved_1|>", "<repo>", "<file>")
    assert choose(*names) == (3, 5, 2)
    assert choose(*names, used=(3,)) == (5, 2, 6)
    assert choose(*names, used=("<fim>",)) == (3, 5, 6)
    assert choose(*names, template="{{ '<repo>' }}", used=(2,)) == (3, 5, 7)
    with pytest.raises(ProfileError, match="has 0 unused special tokens"):
        choose("<s>", "</s>", "<unk>")
    rows = [AddedToken(i, f"<|reserved_{i}|>") for i in range(4)]
    with pytest.raises(ProfileError, match="has 2 unused"):
        choose_control_tokens(rows, template="", used=(), vocab_size=2)  # rows that the model doesn't have


def test_anchors(families: dict[str, ModelProfile]) -> None:
    def opening(family: str) -> str:
        return families[family].tokenizer.decode(families[family].anchor_token_ids)

    assert opening("smollm2") == "<|im_start|>system\n"
    assert opening("llama3") == "<|begin_of_text|><|start_header_id|>"
    assert opening("mistral") == "<|begin_of_text|>[INST]"
    assert opening("gemma") == "<|begin_of_text|><start_of_turn>user\n"
    assert opening("llama31").startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting")
    assert len(families["llama31"].anchor_token_ids) == MAX_ANCHOR
    dated = replace(families["qwen3"], chat_template="{{ strftime_now('%d %B') }} {{ messages[0].content }}")
    assert derive_anchor(dated) == ()


def test_the_configured_profile(monkeypatch: pytest.MonkeyPatch, smol: ModelProfile) -> None:
    monkeypatch.delenv("MINIPIC_BASE_URL", raising=False)
    assert ModelProfile.configured() is smol
