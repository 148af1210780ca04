"""Prompts of many dependent segments: what each sees is hashed once for all, and bounded before it reaches the engine."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from minipic_sdk.layout import ControlTokens
from minipic_server import validation
from minipic_server.config import KEY, SpanConfig
from minipic_server.hashing import SpanHasher
from reference.corpus import words
from reference.prompts import Control, PromptSpec, dep, head, span

CONTROL = ControlTokens(*Control())
CONFIG = SpanConfig(CONTROL, 16, "", "a model")
HEAD = head(*words(21, 1))


@pytest.fixture
def hashed(monkeypatch):
    """hashed(spec): hashes of the prompt's full blocks; ``hashed.calls`` counts what was hashed."""
    init_none_hash(sha256)

    def get(spec, salt=None):
        request = SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args={"minipic": spec.meta()}),
            prompt_token_ids=spec.physical(),
            all_token_ids=spec.physical(),
            num_tokens=len(spec.physical()),
            num_prompt_tokens=len(spec.physical()),
            block_hashes=[],
            cache_salt=salt,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
        )
        monkeypatch.setattr("minipic_server.hashing.generate_block_hash_extra_keys", lambda *_: (None, 0))

        def count(value):
            get.items += len(value[-1]) if isinstance(value, tuple) and isinstance(value[-1], tuple) else 0
            return sha256(value)

        get.items = 0
        return SpanHasher(CONFIG, count, None)(request)

    return get


def block_of(spec, hashes, piece):
    """Hash of the first block of a piece."""
    ids, marks = spec.physical(), []
    for i in range(0, len(ids), 16):
        if i == 0 or ids[i] in CONTROL[:2]:
            marks.append(i // 16)
    return hashes[marks[piece]]


def test_what_many_dependents_see_is_hashed_in_proportion_to_them(hashed):
    def items(count):
        hashed(PromptSpec((HEAD, *(dep(*words(15, i)) for i in range(count)), dep(*words(20, 999)))))
        return hashed.items

    assert items(400) < 2.2 * items(200)


def test_a_dependent_hash_covers_what_it_sees_and_nothing_behind_it(hashed):
    a, b, c, q = (words(20, seed) for seed in (1, 2, 3, 4))
    first = PromptSpec((HEAD, span(*a), dep(*b), span(*c), dep(*q)))
    asked = block_of(first, hashed(first), 2)
    later = PromptSpec((HEAD, span(*a), dep(*b), dep(*c), dep(*q)))
    assert block_of(later, hashed(later), 2) == asked
    for other in (
        PromptSpec((HEAD, span(*c), dep(*b), span(*a), dep(*q))),
        PromptSpec((HEAD, dep(*a), dep(*b), span(*c), dep(*q))),
        PromptSpec((HEAD, span(*a), dep(*words(1, 5)), dep(*b), dep(*q))),
    ):
        at = 3 if len(other.pieces) == 5 and other.pieces[3].tokens == b else 2
        assert block_of(other, hashed(other), at) != asked
    assert block_of(first, hashed(first, salt="red"), 2) != asked


def test_the_physical_order_of_what_is_seen_does_not_matter(hashed):
    a, b, c, q = (words(20, seed) for seed in (1, 2, 3, 4))
    one = PromptSpec((HEAD, span(*a), span(*b), dep(*c), dep(*q)))
    places = dict(zip("habcq", one.starts(), strict=True))
    other = PromptSpec(
        (
            HEAD,
            span(*b, logical=places["b"]),
            span(*a, logical=places["a"]),
            dep(*c, logical=places["c"]),
            dep(*q, logical=places["q"]),
        )
    )
    assert hashed(one)[-1] == hashed(other)[-1]


def test_too_many_dependents_are_refused():
    spec = PromptSpec((HEAD, *(dep(5) for _ in range(2200))))
    config = SimpleNamespace(
        additional_config={KEY: CONFIG.to_dict()}, model_config=SimpleNamespace(max_model_len=1 << 20)
    )
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args={"minipic": spec.meta()}, max_tokens=1, logit_bias=None),
        prompt_token_ids=spec.physical(),
        prompt_embeds=None,
        mm_features=None,
        resumable=False,
    )
    with pytest.raises(validation.InvalidSpanRequest, match="2200 dependent segments"):
        validation.check_request(config, request, None)
