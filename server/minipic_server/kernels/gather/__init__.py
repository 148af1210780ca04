"""Contiguous keys and values for long queries; see ``kernel.py`` and, to understand it, ``naive.py``."""

from minipic_server.kernels.gather.kernel import gather
from minipic_server.kernels.gather.naive import gather_naive

__all__ = ["gather", "gather_naive"]
