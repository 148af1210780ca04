"""Environment variables of the plugin, typed, in one place."""

import os
from typing import Final

SWITCH: Final = "MINIPIC"


def switched_on() -> bool:
    """Whether the plugin acts at all (I10): set by `minipic serve` and `engine_kwargs`, never by installing it."""
    return os.environ.get(SWITCH) == "1"
