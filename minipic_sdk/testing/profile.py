"""A profile made from nothing."""

import json
from functools import cache
from typing import Any, Final

from minipic_sdk.layout import ControlTokens
from minipic_sdk.profile import ModelProfile
from minipic_sdk.tokenize.spec import TokenizerSpec

_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SPECIAL: Final = ("<|im_start|>", "<|im_end|>", "<|reserved_0|>", "<|reserved_1|>", "<|reserved_2|>")


@cache
def fake_profile(block_size: int = 16) -> ModelProfile:
    """A profile of one token per byte and a ChatML template; needs no files."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    ids = {text: i for i, text in enumerate((*letters, *_SPECIAL))}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{"id": ids[text], "content": text, **flags} for text in _SPECIAL],
        "normalizer": None,
        "pre_tokenizer": bytewise,
        "post_processor": None,
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": ids, "merges": []},
    }
    return ModelProfile(
        model="fake",
        block_size=block_size,
        control_tokens=ControlTokens(*(ids[text] for text in _SPECIAL[2:])),
        anchor_token_ids=(ids["<|im_start|>"],),
        chat_template=_TEMPLATE,
        tokenizer_spec=TokenizerSpec("huggingface", json.dumps(tokenizer)),
        max_model_len=1 << 20,
        template_variables={"eos_token": "<|im_end|>"},
        eos_token_ids=(ids["<|im_end|>"],),
    )
