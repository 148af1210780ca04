"""The fast search for control tokens finds what the parser finds, and nothing in a prompt that the parser refuses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="needs vLLM (make setup)")

from minipic_sdk.errors import LayoutError
from minipic_sdk.layout import ControlTokens, parse_layout
from minipic_server.cut import find_cut, pack

SSEP, PDEP, PAD = CONTROL = ControlTokens(101, 102, 103)
BLOCK = 16
OF_CUTTING = ("inside a block", "shorter than a block", "PAD before", "is empty")  # rules about control tokens


def prompt(seed: int) -> list[int]:
    """Mostly well-formed; sometimes a token is replaced, or the end is cut off."""
    rng = random.Random(seed)
    ids: list[int] = []
    for mark in rng.choices((None, SSEP, PDEP), k=rng.randrange(1, 7)):
        ids += [] if mark is None else [mark]
        ids += [rng.randrange(100) for _ in range(rng.choice((0, 1, 14, 15, 16, 40)))]
        ids += [PAD] * (-len(ids) % BLOCK + rng.choice((0, 0, 0, 16)))
    for _ in range(rng.choice((0, 0, 1, 2)) if ids else 0):
        ids[rng.randrange(len(ids))] = rng.choice((*CONTROL, 5))
    return ids[: len(ids) - rng.choice((0, 0, 1, 20))]


@given(st.integers(0, 1 << 32))
def test_same_layout_or_refused(seed: int) -> None:
    ids = prompt(seed)
    cut = find_cut(pack(ids), CONTROL, BLOCK)
    try:
        wanted, refused = parse_layout(ids, control=CONTROL, block_size=BLOCK), ""
    except LayoutError as error:
        wanted, refused = None, str(error)
    assert (cut is None) == any(rule in refused for rule in OF_CUTTING)
    if wanted is not None:
        assert parse_layout(ids, control=CONTROL, block_size=BLOCK, cut=cut) == wanted


def test_odd_input() -> None:
    with pytest.raises(ValueError, match="64-bit integers"):
        pack([1 << 70])
    assert find_cut(pack([]), CONTROL, BLOCK) is None
    assert find_cut(pack([1, 2]), ControlTokens(7, 7, 8), BLOCK) is None
