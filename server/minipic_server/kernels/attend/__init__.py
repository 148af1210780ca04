"""Attention over runs: split-KV, no gather; see ``kernel.py`` and, to understand it, ``naive.py``."""

from minipic_server.kernels.attend.kernel import attend
from minipic_server.kernels.attend.naive import attend_naive

__all__ = ["attend", "attend_naive"]
