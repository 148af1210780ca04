"""Shared by all tests: quiet, single-threaded vLLM, and `reference` and `invariants` importable."""

import os
import sys
from pathlib import Path

# Before anything imports torch or vLLM: one process, one thread, no compilation, no network.
for _name, _value in {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(_name, _value)
sys.path.insert(0, str(Path(__file__).parent))
