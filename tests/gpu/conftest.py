"""Tests that need an NVIDIA GPU with vLLM; elsewhere they are skipped, with the reason.

TORCHDYNAMO_DISABLE=0 python -m pytest -c tests/gpu.ini tests/kernels tests/invariants tests/gpu
"""

import os

import pytest

torch = pytest.importorskip("torch")

from invariants.conftest import _engines, _stocks, checkpoint, engine, reference, stock  # noqa: E402, F401
from invariants.test_real_model import smol  # noqa: E402, F401


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu/" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
            elif os.environ.get("TORCHDYNAMO_DISABLE") == "1":
                item.add_marker(pytest.mark.skip(reason="torch.compile is off: set TORCHDYNAMO_DISABLE=0"))
