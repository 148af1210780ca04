"""Every kernel variant compiles for Hopper; see compile_for_hopper.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VARIANTS = ["bf16", "head64", "head96", "head256", "gptj", "partial", "fp32", "hnd"]


# With the other kernel tests, once: it takes two minutes.
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run tests/kernels with TRITON_INTERPRET=1 set")
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_compile(variant):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    script = HERE / "compile_for_hopper.py"
    done = subprocess.run([sys.executable, str(script), variant], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
