"""What the tests of real servers share."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from minipic_cli.servers import free_port

LIMIT_S = 900.0  # for what takes seconds: the machine may be slow, and busy with something else
KEY = "secret"
MODEL = "smollm2"
OPTIONS = ("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--served-model-name", MODEL)
SMALL = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2"}


def free_address() -> str:
    """An address that nothing answers on."""
    return f"http://127.0.0.1:{free_port()}"


def minipic(*arguments: str | Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, without the settings of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MINIPIC")}
    command = [sys.executable, "-m", "minipic_cli", *map(str, arguments)]
    return subprocess.run(command, env={**kept, **env}, capture_output=True, text=True, timeout=LIMIT_S)
