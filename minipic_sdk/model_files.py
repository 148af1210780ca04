"""Deriving a profile from the files of a Hugging Face model directory."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from minipic_sdk.control import choose_control_tokens
from minipic_sdk.errors import ProfileError, TemplateError
from minipic_sdk.gate import GATE_FILE, Gate
from minipic_sdk.layout import ControlTokens
from minipic_sdk.template import PLAIN_TEMPLATE, ChatTemplate
from minipic_sdk.tokenize.spec import TokenizerSpec

if TYPE_CHECKING:
    from minipic_sdk.profile import ModelProfile

MAX_ANCHOR: Final = 16  # tokens; longer ones measured no better (DESIGN section 6)
_SPECIAL_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Openings that a template may depend on: system prompts, no system prompt, the question, today's date.
_SYSTEMS: Final = (None, "Answer briefly.", "you are Zoe", "3 rules:")
_QUESTIONS: Final = ("What?", "how many", "0")
_DAYS: Final = (datetime(2024, 1, 2, 3, 4, 5), datetime(2031, 11, 30, 22, 59, 58))


def profile_of_directory(
    path: Path,
    block_size: int,
    control_tokens: ControlTokens | None,
    model: str | None,
    max_model_len: int | None,
    anchor_token_ids: Sequence[int] | None,
) -> "ModelProfile":
    """See ``ModelProfile.from_directory``."""
    from minipic_sdk.profile import ModelProfile

    if not path.is_dir():
        raise ProfileError(f"{path} is not a directory")
    config = _json(path / "config.json", required=True)
    text_config = cast("dict[str, Any]", config.get("text_config") or config)
    tokenizer_config = _json(path / "tokenizer_config.json")
    generation = _json(path / "generation_config.json")
    spec = TokenizerSpec.from_directory(path)
    variables = _special_tokens(path, tokenizer_config)
    template = _chat_template(path, tokenizer_config)
    if template is None:
        template, variables = PLAIN_TEMPLATE, {**variables, "bos_token": _leading_bos(spec, variables)}
    eos = _ids(generation.get("eos_token_id", text_config.get("eos_token_id")))
    if control_tokens is None:
        named = [v for c in (text_config, generation) for k, v in c.items() if k.endswith("token_id")]
        used = {*variables.values(), *(i for value in named for i in _ids(value))}
        vocab_size = int(text_config.get("vocab_size", 1 << 31))
        control_tokens = choose_control_tokens(spec.added_tokens, template=template, used=used, vocab_size=vocab_size)
    length = max_model_len or text_config.get("max_position_embeddings")
    if not isinstance(length, int):
        raise ProfileError(f"{path / 'config.json'} has no max_position_embeddings: pass max_model_len")
    profile = ModelProfile(
        model=model or path.resolve().name,
        block_size=block_size,
        control_tokens=control_tokens,
        anchor_token_ids=tuple(anchor_token_ids or ()),
        chat_template=template,
        tokenizer_spec=spec,
        max_model_len=length,
        template_variables=variables,
        eos_token_ids=eos,
        gate=Gate.from_json(_json(path / GATE_FILE)) if (path / GATE_FILE).is_file() else None,
    )
    return profile if anchor_token_ids is not None else replace(profile, anchor_token_ids=derive_anchor(profile))


def derive_anchor(profile: "ModelProfile") -> tuple[int, ...]:
    """Token ids that every prompt of the template opens with, whatever the system prompt, the question and the day."""
    openings = [profile.encode_parts([text], opening=True) for text in _openings(profile.template)]
    if not openings:
        return ()
    shortest = min(map(len, openings))
    same = next((i for i in range(shortest) if len({ids[i] for ids in openings}) > 1), shortest)
    return tuple(openings[0][: min(same, MAX_ANCHOR)])


def _openings(template: ChatTemplate) -> Iterator[str]:
    for system, question, now in product(_SYSTEMS, _QUESTIONS, _DAYS):
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": question})
        if template.wants_parts:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        with suppress(TemplateError):  # no system role in this template
            yield template.render(messages, now=now)


def _json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise ProfileError(f"{path} does not exist")
        return {}
    try:
        body: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} is not readable: {error}") from None
    if not isinstance(body, dict):
        raise ProfileError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", body)


def _special_tokens(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The template's ``bos_token`` and so on; absent ones are left out, as transformers does."""
    stated = {**_json(path / "special_tokens_map.json"), **config}
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value: object = stated.get(name)
        content = cast("Mapping[str, object]", value).get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """In transformers' order: chat_template.jinja, chat_template.json, tokenizer_config.json."""
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    template: object = _json(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):
        named = {t["name"]: t["template"] for t in cast("list[dict[str, str]]", template)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _leading_bos(spec: TokenizerSpec, variables: Mapping[str, str]) -> str:
    """BOS if the tokenizer puts one before a bare text."""
    bos = variables.get("bos_token", "")
    if spec.kind == "tiktoken":
        return bos
    processor = json.loads(spec.data).get("post_processor")
    return bos if bos and json.dumps(bos) in json.dumps(processor) else ""


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in cast("list[object]", value) if isinstance(v, int)) if isinstance(value, list) else ()
