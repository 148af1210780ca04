"""Kernels run compiled on a GPU if there is one, else under Triton's interpreter."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")
LATE = False
if not torch.cuda.is_available():
    # Triton's own library is decorated when triton is first imported (vLLM does that), so it is too late then.
    LATE = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pytest_collection_modifyitems(items):
    for item in items:
        if LATE and "tests/kernels/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="run tests/kernels alone, or with TRITON_INTERPRET=1 set"))


@pytest.fixture
def device():
    return DEVICE
