"""Shared by all tests: quiet, single-threaded vLLM, and the packages beside this file importable."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by child processes too

# How long an example takes, or making it up, says how busy the machine is.
settings.register_profile("minipic", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("minipic")


# Colours off a terminal (Rich's own names), and settings of the user's.
LEFT_OUT = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "MINIPIC_BASE_URL", "MINIPIC_API_KEY", "MINIPIC_DEBUG")


@pytest.fixture(scope="session", autouse=True)
def machine_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands find no manifest of this machine's user, perhaps an older MiniPIC's, and leave none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        for name in LEFT_OUT:
            patch.delenv(name, raising=False)
        for name in ("no_proxy", "NO_PROXY"):  # the tests' servers are on this machine
            patch.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost"))))
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vcr: of langchain-tests; we record nothing")
    config.addinivalue_line("markers", "benchmark: of langchain-tests")


# In place of four pytest plugins that langchain-tests would need for three tests.
@pytest.fixture
def vcr() -> None:
    """For the one test that replays recordings, which skips itself."""


@pytest.fixture
def snapshot() -> None:
    """For the one test of serialisable models: LangChain reads back only those on its own list."""


@pytest.fixture
def benchmark():
    """In place of pytest-benchmark: runs it once."""
    return lambda function, *args, **kwargs: function(*args, **kwargs)
