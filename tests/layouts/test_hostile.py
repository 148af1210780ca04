"""Parsing prompts of many segments, and of none."""

import gc
import time

import pytest

from minipic_sdk.errors import LayoutError
from minipic_sdk.layout import ControlTokens, Placement, parse_layout

CONTROL = ControlTokens(509, 510, 511)


def test_a_question_of_nothing():
    with pytest.raises(LayoutError, match="end in a visible token"):
        parse_layout([7] * 16 + [510], control=CONTROL, block_size=16)


@pytest.mark.parametrize("kinds", [(510,), (509, 510)], ids=["all dependent", "spans then links, as EPIC"])
def test_parsing_placements_is_not_cubic(kinds):
    """400 documents with a link each, 13k tokens, against 50: eight times as much, where cubic is five hundred times."""

    def seconds(n):
        """Of this thread's processor time: how long others had the core doesn't count."""
        marks = [kinds[i * len(kinds) // n] for i in range(n)]
        ids = [7] * 16 + [t for m in marks for t in (m, *[5] * 15)]
        places = [Placement(0), *(Placement(16 + 15 * i) for i in range(n))]
        if marks[-1] == 509:
            places = places[:-1]
        began = time.thread_time()
        parse_layout(ids, control=CONTROL, block_size=16, placements=places)
        return time.thread_time() - began

    gc.disable()  # a collection of all that other tests left may come in any of them
    try:
        pairs = [(seconds(100), seconds(800)) for _ in range(5)]
    finally:
        gc.enable()
    few, many = (min(column) for column in zip(*pairs, strict=True))
    assert many < 50 * few
