"""Profiles for the SDK's tests: the bundled model's vocabulary under templates of several families."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minipic_sdk import ModelProfile
from minipic_sdk.model_files import derive_anchor
from minipic_sdk.tokenize.spec import TokenizerSpec

TEMPLATES = Path(__file__).parent / "templates"

# Tokens that the templates of other families need, beyond SmolLM2's vocabulary: text -> special.
EXTRA_TOKENS = {
    "<|begin_of_text|>": True,
    "<|start_header_id|>": True,
    "<|end_header_id|>": True,
    "<|eot_id|>": True,
    "<tool_call>": False,
    "</tool_call>": False,
    "<think>": False,
    "</think>": False,
    "[INST]": True,
    "[/INST]": True,
    "<start_of_turn>": True,
    "<end_of_turn>": True,
    "\t\t\t": False,
}


@pytest.fixture(scope="session")
def smol() -> ModelProfile:
    """The bundled profile."""
    return ModelProfile.default()


@pytest.fixture(scope="session")
def wide_spec(smol: ModelProfile) -> TokenizerSpec:
    """SmolLM2's tokenizer with the markup of other families added."""
    body: dict[str, Any] = json.loads(smol.tokenizer_spec.data)
    for i, (content, special) in enumerate(EXTRA_TOKENS.items()):
        added = {"id": 49152 + i, "content": content, "special": special, "normalized": False}
        body["added_tokens"].append({"single_word": False, "lstrip": False, "rstrip": False, **added})
    return TokenizerSpec("huggingface", json.dumps(body))


@pytest.fixture(scope="session")
def families(smol: ModelProfile, wide_spec: TokenizerSpec) -> dict[str, ModelProfile]:
    """One profile per template in templates/, and the bundled one."""
    constants = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    found = {"smollm2": smol}
    for path in sorted(TEMPLATES.glob("*.jinja")):
        profile = replace(
            smol,
            chat_template=path.read_text().removesuffix("\n"),
            tokenizer_spec=wide_spec,
            template_variables=constants,
            anchor_token_ids=(),
        )
        found[path.stem] = replace(profile, anchor_token_ids=derive_anchor(profile))
    return found


@pytest.fixture
def tiny_blocks(smol: ModelProfile) -> ModelProfile:
    """Blocks of four tokens, so that every boundary is near."""
    return replace(smol, block_size=4)
