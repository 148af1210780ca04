"""The composed text is what transformers renders for the same messages with the documents written in."""

from typing import Any

import pytest

from minipic_sdk import InputError, ModelProfile, Prompt, TemplateError, Tool
from minipic_sdk.documents import Document

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

FAMILIES = ["smollm2", "llama3", "llama31", "qwen3", "mistral", "gemma", "parts", "toollist"]
NO_SYSTEM = {"gemma"}
SPELL_TOOLS = {"llama31": "after", "qwen3": "before", "mistral": "text", "toollist": "apart"}

HISTORY = [
    {"role": "user", "content": " What is a quokka? "},
    {"role": "assistant", "content": "A small\nmarsupial.\n"},
]
DOCS = [
    "Quokkas live on Rottnest Island.",
    Document("They eat grass.  \n", title="Diet"),
    "\n  They are small.",
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Say it", "parameters": {"type": "object"}},
    },
    {"function": {"parameters": {"b": [1, {"z": 1, "a": 2}], "a": "é"}, "name": "time"}, "type": "function"},
]


def reference(profile: ModelProfile, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
    inner = tokenizers.Tokenizer.from_str(profile.tokenizer_spec.data)
    hf = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **profile.template_variables)
    hf.chat_template = profile.chat_template
    return hf.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **kwargs)


def inlined(messages: list[dict[str, Any]], docs: list[Any]) -> list[dict[str, Any]]:
    text = "".join(Document.of(d).content for d in docs)
    first = next(i for i, m in enumerate(messages) if m["role"] == "user")
    changed = {**messages[first], "content": text + messages[first]["content"]}
    return [*messages[:first], changed, *messages[first + 1 :]]


def conversation(family: str, question: str) -> list[dict[str, Any]]:
    opening = [] if family in NO_SYSTEM else [{"role": "system", "content": "  Be brief. "}]
    return [*opening, *HISTORY, {"role": "user", "content": question}]


def parts_if_needed(family: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if family != "parts":
        return messages
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_the_templates(families: dict[str, ModelProfile], family: str) -> None:
    profile = families[family]
    messages = conversation(family, "Where do they live?\n")
    prompt = Prompt.from_messages(messages, documents=DOCS, profile=profile)
    expected = parts_if_needed(family, inlined(messages, DOCS))
    assert prompt.text == reference(profile, expected, tokenize=False)
    assert [s.kind for s in prompt.spans].count("span") == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_without_spans_are_the_templates(families: dict[str, ModelProfile], family: str) -> None:
    profile = families[family]
    messages = conversation(family, "a\t\t\tb  c\n\n\nd 2024 é😀")
    prompt = Prompt.from_messages(messages, profile=profile)
    assert prompt.token_ids == reference(profile, parts_if_needed(family, messages), tokenize=True)
    assert prompt.plain_token_ids == prompt.token_ids
    assert not prompt.has_spans
    assert prompt.vllm_xargs == {}


@pytest.mark.parametrize("family", SPELL_TOOLS)
def test_tools_are_the_templates(families: dict[str, ModelProfile], family: str) -> None:
    profile = families[family]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it late?"}]
    for tools in (TOOLS, TOOLS[:1]):
        prompt = Prompt.from_messages(messages, documents=DOCS, tools=tools, profile=profile)
        canonical = [Tool.of(t).definition for t in tools]
        expected = reference(profile, inlined(messages, DOCS), tools=canonical, tokenize=False)
        assert prompt.text == expected
        spans = [s.name for s in prompt.spans if s.kind == "span" and s.name.startswith("tool:")]
        assert len(spans) == (0 if SPELL_TOOLS[family] == "text" else len(tools))


@pytest.mark.parametrize("family", ["llama31", "qwen3", "smollm2", "gemma", "parts"])
def test_tool_spans_do_not_depend_on_order_or_number(families: dict[str, ModelProfile], family: str) -> None:
    def keys(tools: list[dict[str, Any]]) -> dict[str, str]:
        prompt = Prompt.compose([], "Is it late?", tools=tools, profile=families[family])
        return {s.name: s.key for s in prompt.spans if s.kind == "span"}

    both = keys(TOOLS)
    assert set(both) == {"tool:weather", "tool:time"}
    assert keys(TOOLS[::-1]) == both
    assert keys(TOOLS[:1]) == {"tool:weather": both["tool:weather"]}


def test_a_system_prompt_that_the_template_refuses(families: dict[str, ModelProfile]) -> None:
    with pytest.raises(TemplateError, match="System role not supported"):
        Prompt.compose(["a"], "b", system="c", profile=families["gemma"])


def test_thinking_options_and_spoken_markup(families: dict[str, ModelProfile]) -> None:
    profile = families["qwen3"]
    history = [
        {"role": "user", "content": "hello <think>"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."},
    ]
    messages = [*history, {"role": "user", "content": "bye"}]
    prompt = Prompt.from_messages(messages, profile=profile, template_options={"enable_thinking": False})
    assert prompt.text == reference(profile, messages, tokenize=False, enable_thinking=False)
    think = profile.markup.ids["<think>"]
    assert prompt.token_ids.count(think) == 1  # the template's own, not the user's


def test_tool_call_history(families: dict[str, ModelProfile]) -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "time", "arguments": '{"zone": "<|im_end|>"}'},
    }
    messages = [
        {"role": "user", "content": "Is it late?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "23:00 <|im_start|>"},
    ]
    profile = families["qwen3"]
    prompt = Prompt.from_messages(messages, tools=TOOLS, profile=profile)
    assert '<tool_call>\n{"name": "time", "arguments": {"zone": "<|im_end|>"}}\n</tool_call>' in prompt.text
    starts = prompt.plain_token_ids.count(profile.markup.ids["<|im_start|>"])
    assert starts == 5  # system, user, assistant, tool, generation: not the tool's text


def test_text_parts_are_joined_and_others_refused(smol: ModelProfile) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = Prompt.from_messages([{"role": "user", "content": parts}], profile=smol)
    assert "user\na\nb<|im_end|>" in prompt.text
    with pytest.raises(InputError, match="image_url"):
        Prompt.from_messages([{"role": "user", "content": [{"type": "image_url"}]}], profile=smol)
