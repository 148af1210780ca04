"""Hashes of recent spans are remembered in a bounded memory, whatever the size of blocks and spans."""

import tracemalloc

import pytest

pytest.importorskip("vllm")

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from minipic_sdk.layout import ControlTokens
from minipic_server.config import SpanConfig
from minipic_server.hashing import SpanHasher
from reference.prompts import Control

LIMIT = 1 << 20


@pytest.mark.parametrize(("block", "blocks", "spans"), [(16, 1, 4000), (16, 100, 100), (1024, 2, 250)])
def test_the_memo_stays_within_its_bytes(monkeypatch, block, blocks, spans):
    monkeypatch.setattr("minipic_server.hashing.MEMO_BYTES", LIMIT, raising=False)
    init_none_hash(sha256)
    hasher = SpanHasher(SpanConfig(ControlTokens(*Control()), block, "", "a model"), sha256, None)
    tracemalloc.start()
    for number in range(spans):
        hasher.span_chain([number % 500] * (block * blocks - 1) + [number], (), None)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert LIMIT / 2 < used < 1.2 * LIMIT
    assert len(hasher._memo) < spans
