"""Engines, checkpoints and references are made once a session; every test gets an engine with an empty cache."""

from collections import Counter

import pytest

from reference.checkpoints import make_checkpoint
from reference.hf import HFReference

pytest.importorskip("vllm")

from invariants.engines import Engine
from invariants.stock import StockEngine


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(family, **config): a directory with a tiny random model."""
    directory = tmp_path_factory.mktemp("models")
    return lambda family="llama", **config: make_checkpoint(directory, family, **config)


@pytest.fixture(scope="session")
def reference(checkpoint):
    """reference(family, **config): the transformers model behind the same checkpoint."""
    made = {}

    def get(family="llama", **config):
        path = checkpoint(family, **config)
        if path not in made:
            made[path] = HFReference(path)
        return made[path]

    return get


@pytest.fixture(scope="session")
def _engines():
    made = {}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture
def engine(_engines, checkpoint):
    """engine(family, **engine arguments): a span engine, shared by tests that ask for the same one."""

    def get(family="llama", model=None, **options):
        path = model or checkpoint(family)
        key = (str(path), repr(sorted(options.items())))
        if key not in _engines:
            _engines[key] = Engine(path, **options)
        _engines[key].reset()
        _engines[key].met = Counter()
        return _engines[key]

    return get


@pytest.fixture(scope="package")
def _stocks():
    """Half a gigabyte each, which the servers of tests/over_http may need."""
    made = {}
    yield made
    for engine in made.values():
        engine.close()


@pytest.fixture
def stock(_stocks, checkpoint):
    """stock(family, **engine arguments): stock vLLM in a process of its own."""

    def get(family="llama", model=None, **options):
        path = model or checkpoint(family)
        key = (str(path), repr(sorted(options.items())))
        if key not in _stocks:
            _stocks[key] = StockEngine(path, **options)
        return _stocks[key]

    return get
