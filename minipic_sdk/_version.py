"""The version of the SDK and of the server plugin: they are released together."""

from typing import Final

__version__: Final = "0.1.0"
