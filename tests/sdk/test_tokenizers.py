"""Tokenizers: exact on ordinary text, deaf to markup."""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipic_sdk import ModelProfile, ProfileError
from minipic_sdk.tokenize.base import AddedToken, Markup
from minipic_sdk.tokenize.cache import TokenCache
from minipic_sdk.tokenize.hf import HFTokenizer
from minipic_sdk.tokenize.spec import CL100K_PATTERN, TokenizerSpec
from minipic_sdk.tokenize.tiktoken import TiktokenTokenizer

MARKUP = ["<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<|endoftext|>"]
texts = st.lists(
    st.sampled_from([*MARKUP, "<|", "|>", "im_start", " ", "\n", "a", "é", "😀", "\ufdd2"]) | st.text(max_size=8)
)


@given(parts=texts)
def test_text_never_becomes_markup(parts: list[str]) -> None:
    text = "".join(parts)
    smol = ModelProfile.default()
    ids = smol.encode(text)
    assert not set(ids) & set(range(17))
    shown = smol.tokenizer.decode(ids)
    assert all(shown.count(m) == text.count(m) for m in MARKUP)  # spelled out, as text


def test_ordinary_text_is_tokenised_as_by_the_library(smol: ModelProfile) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer.from_str(smol.tokenizer_spec.data)
    for text in ("Hello world", "  two\n\n\nthree 2024", "naïve 😀 x=1;\t\t"):
        assert smol.encode(text) == plain.encode(text, add_special_tokens=False).ids


def test_texts_together_are_tokenised_as_one_by_one(smol: ModelProfile) -> None:
    given = ["Hello", "", " two\n\nthree", "<|im_start|>", "😀", "Hello"]
    assert smol.tokenizer.encode_batch(given) == smol.encode_batch(given) == [smol.encode(text) for text in given]


def metaspace(**model: Any) -> str:
    """A SentencePiece-like tokenizer that puts a space before the first word only."""
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 0, "content": "<s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False}
            ],
            "normalizer": None,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
            "post_processor": None,
            "decoder": None,
            "model": model,
        }
    )  # fmt: skip


def test_only_the_opening_gets_the_first_words_space() -> None:
    vocab = {"<s>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4}
    tokenizer = HFTokenizer(metaspace(type="BPE", vocab=vocab, merges=[["▁", "a"]]))
    assert tokenizer.encode("ab", opening=True) == [4, 3]
    assert tokenizer.encode("ab") == [2, 3]
    assert tokenizer.encode(" ab") == [4, 3]


def test_a_vocabulary_that_holds_markup_as_an_ordinary_piece() -> None:
    pieces = [["<s>", 0.0], ["<", -9.0], ["s", -9.0], [">", -9.0], ["s>", -2.0], ["▁", -1.0], ["<unk>", -20.0]]
    tokenizer = HFTokenizer(metaspace(type="Unigram", unk_id=6, vocab=pieces))
    ids = tokenizer.encode("s<s>s<s>")
    assert 0 not in ids
    assert ids == [2, 1, 4, 2, 1, 4]
    assert tokenizer.encode_batch(["s", "s<s>s<s>"]) == [tokenizer.encode("s"), ids]


def test_a_control_token_that_text_needs_is_refused(smol: ModelProfile) -> None:
    letter = smol.encode("a")[0]
    tokenizer = smol.tokenizer_spec.load(forbidden=[letter])
    with pytest.raises(ProfileError, match=str(letter)):
        tokenizer.encode("a")


def test_broken_files() -> None:
    with pytest.raises(ProfileError, match="not readable"):
        HFTokenizer('{"model": 3}')
    with pytest.raises(ProfileError, match="rank file"):
        TiktokenTokenizer("not base64 at all", CL100K_PATTERN, {})


def llama3() -> TokenizerSpec:
    pytest.importorskip("tiktoken")
    package = pytest.importorskip("llama_models.llama3", reason="no Llama 3 ranks", exc_type=ImportError)
    path = Path(next(iter(package.__path__))) / "tokenizer.model"
    names = ["<|begin_of_text|>", "<|start_header_id|>", *(f"<|reserved_special_token_{i}|>" for i in range(200))]
    return TokenizerSpec(
        "tiktoken", path.read_text(), CL100K_PATTERN, {name: 128000 + i for i, name in enumerate(names)}
    )


def test_llama3_ranks() -> None:
    tokenizer = llama3().load()
    assert tokenizer.encode("Hello world, 12345!") == [9906, 1917, 11, 220, 4513, 1774, 0]
    ids = tokenizer.encode("<|begin_of_text|><|reserved_special_token_3|>")
    assert max(ids) < 128000
    assert tokenizer.decode(ids) == "<|begin_of_text|><|reserved_special_token_3|>"
    runs = " " * 60_000 + "x" * 60_000
    assert tokenizer.decode(tokenizer.encode(runs)) == runs


def test_cl100k_ranks() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    try:
        ranks = files("tiktoken_ext").joinpath("data/cl100k_base.tiktoken").read_text()
    except (ModuleNotFoundError, FileNotFoundError):
        pytest.skip("no cl100k ranks")
    tokenizer = TiktokenTokenizer(ranks, CL100K_PATTERN, {"<|endoftext|>": 100257})
    assert tokenizer.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
    assert 100257 not in tokenizer.encode("<|endoftext|>")
    assert tiktoken is not None


def test_a_rank_can_t_be_a_control_token() -> None:
    spec = TokenizerSpec("tiktoken", "YQ== 0\nYg== 1\n", CL100K_PATTERN, {"<|end|>": 2})
    assert spec.load(forbidden=[2]).encode("ab") == [0, 1]
    with pytest.raises(ProfileError, match="token 1 is a piece of ordinary text"):
        spec.load(forbidden=[1, 2])


def test_a_rank_file_in_a_directory(tmp_path: Path) -> None:
    words = [*(bytes([b]) for b in range(256)), b"ab"]
    ranks = "".join(f"{base64.b64encode(w).decode()} {i}\n" for i, w in enumerate(words))
    (tmp_path / "tokenizer.model").write_text(ranks)
    config = {"added_tokens_decoder": {str(i + 257): {"content": f"<|reserved_{i}|>"} for i in range(3)}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "vocab_size": 260}))
    profile = ModelProfile.from_directory(tmp_path)
    assert tuple(profile.control_tokens) == (257, 258, 259)
    assert profile.encode("ab") == [256]
    assert ModelProfile.from_json(profile.to_json()).fingerprint == profile.fingerprint


def test_markup_takes_whitespace_along_as_its_flags_say() -> None:
    markup = Markup([AddedToken(1, "<|end|>", rstrip=True), AddedToken(2, "<m>", lstrip=True), AddedToken(3, "<|e")])
    assert markup.split("a<|end|> \n b  <m> c<|e") == ["a", 1, "b", 2, " c", 3]
    assert markup.split("") == []


def test_user_text_that_could_be_read_as_markup() -> None:
    markup = Markup([AddedToken(1, "<|end|>")])
    assert markup.unsafe("plain text") == []
    assert markup.unsafe("x<|end|>y") == [(1, 8)]
    assert markup.unsafe("half <|en") == [(5, 9)]  # the template may write the other half
    assert markup.unsafe(" d|> half") == [(1, 4)]
    assert markup.unsafe("a<|end|><|end|>") == [(1, 15)]


def test_the_cache_is_bounded_and_gives_copies() -> None:
    calls: list[str] = []

    def encode(text: str) -> list[int]:
        calls.append(text)
        return [len(text)] * 4

    cache = TokenCache(max_tokens=8)
    first = cache.get("a", encode)
    first.append(99)
    assert cache.get("a", encode) == [1] * 4
    cache.get("bb", encode)
    cache.get("a", encode)
    cache.get("ccc", encode)  # pushes "bb" out, which was used least lately
    assert (len(cache), cache.tokens) == (2, 8)
    cache.get("a", encode)
    cache.get("bb", encode)
    assert calls == ["a", "bb", "ccc", "bb"]
    assert cache.get("\ud800", encode)  # lone surrogates come from broken files


def test_the_cache_counts_long_texts_of_few_tokens() -> None:
    cache = TokenCache(max_tokens=100)
    cache.get("a" * 200, lambda _: [1])
    assert cache.tokens == 50
    cache.get("b" * 400, lambda _: [1])
    assert (len(cache), cache.tokens) == (1, 100)
    cache.get("c" * 404, lambda _: [1])
    assert len(cache) == 1


def test_the_cache_asks_for_what_it_lacks_together() -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> list[list[int]]:
        asked.append(list(texts))
        return [[ord(c) for c in text] for text in texts]

    cache = TokenCache()
    assert cache.get("b", lambda _: [98]) == [98]
    assert cache.get_batch(["a", "b", "cc"], encode) == [[97], [98], [99, 99]]
    got = cache.get_batch(["cc", "a"], encode)
    assert got == [[99, 99], [97]]
    got[0].append(1)
    assert cache.get_batch(["cc"], encode) == [[99, 99]]
    assert asked == [["a", "cc"]]
