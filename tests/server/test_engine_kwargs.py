"""What an engine for spans may be asked for."""

import pytest

from minipic_server import engine_kwargs
from minipic_server.engine import check_block_size


@pytest.mark.parametrize("size", [-16, 0, 8, 17, 24])
def test_a_block_size_that_attention_cannot_have(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minipic_server.engine.switch_on", lambda: pytest.fail("refused first"))
    with pytest.raises(ValueError, match=f"block size {size}: it must be 16, 32, 64 or another multiple of 16"):
        engine_kwargs("unused", control_tokens=(1, 2, 3), block_size=size)


@pytest.mark.parametrize("size", [16, 32, 48, 64, 128])
def test_a_block_size_that_it_can_have(size: int) -> None:
    check_block_size(size)


def test_control_tokens_are_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minipic_server.engine.switch_on", lambda: pytest.fail("refused first"))
    with pytest.raises(ValueError, match=r"control_tokens=\(7, 8, 7\): SSEP, PDEP and PAD must be three ids"):
        engine_kwargs("unused", control_tokens=(7, 8, 7))
