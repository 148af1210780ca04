"""The bundled model itself, through transformers: is it right?"""

import math
import pydoc_data.topics

import pytest

from minipic_cli.models import default_model_dir, store

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENGLISH = (
    "The Moon is Earth's only natural satellite. It orbits our planet at an average distance of about thirty times "
    "the Earth's diameter, and always shows the same side to us, because tidal forces have slowed its rotation until "
    "one turn took as long as one orbit. Its gravity raises the tides of the oceans, and over millions of years it "
    "has made our days a little longer. People first walked on its surface in July 1969."
)


@pytest.fixture(scope="module")
def path():
    return default_model_dir()


@pytest.fixture(scope="module")
def tokenizer(path):
    return transformers.AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def model(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def perplexity(model, tokenizer, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :600]
    with torch.inference_mode():
        return math.exp(model(ids, labels=ids).loss.item())


def generate(model, tokenizer, ids, tokens: int) -> str:
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :])


def test_every_byte_is_as_pinned(path):
    assert store.verify(path, full=True) is None


def test_it_knows_the_capital_of_france(model, tokenizer):
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert generate(model, tokenizer, ids, 2) == " Paris."


def test_it_answers_in_chat_form_and_stops(model, tokenizer):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).input_ids
    assert generate(model, tokenizer, ids, 20) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (pydoc_data.topics.topics["with"], 15),
        (pydoc_data.topics.topics["naming"], 15),
        (ENGLISH, 30),  # 89 tokens only, and the first ones are anybody's guess
    ],
    ids=["with", "naming", "prose"],
)
def test_perplexity_of_english(model, tokenizer, text, most):
    assert 4 < perplexity(model, tokenizer, text) < most


def test_perplexity_tells_a_wrong_row_order(model, tokenizer):
    """The trap of the conversion: with a head's rows in llama.cpp's order the model is visibly broken."""
    from cli.gguf_files import interleave

    weight = model.model.layers[0].self_attn.q_proj.weight
    right = weight.data.clone()
    weight.data = torch.from_numpy(interleave(right.numpy(), 9))
    try:
        broken = perplexity(model, tokenizer, ENGLISH)
    finally:
        weight.data = right
    assert broken > 1.2 * perplexity(model, tokenizer, ENGLISH)


@pytest.mark.parametrize(
    "text",
    ["1234567 a  b\n\n\tdef f(x):", "naïve 日本語 😀 don't", "  two leading spaces", "", "\r\n", "x" * 5000],
    ids=["code", "unicode", "spaces", "empty", "crlf", "long"],
)
def test_text_round_trips(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=True).input_ids
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(range(17))


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("In 2024, 3.14") == ["In", "Ġ", "2", "0", "2", "4", ",", "Ġ", "3", ".", "1", "4"]


def test_special_tokens(tokenizer):
    a, b = tokenizer("a").input_ids[0], tokenizer("b").input_ids[0]
    assert tokenizer("a<|im_start|>b<repo_name>").input_ids == [a, 1, b, 3]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0)


def test_newlines_before_a_digit_are_one_token(tokenizer):
    """Digits are split off before anything else, as in the original; splitting by words first gives two newlines."""
    assert tokenizer.tokenize("steps:\n\n1. Find") == ["steps", ":", "ĊĊ", "1", ".", "ĠFind"]


def test_chat_template(tokenizer):
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
