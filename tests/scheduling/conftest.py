"""Schedulers without an engine: one configuration per set of options, made once."""

from typing import Any

import pytest

from reference.checkpoints import make_checkpoint

pytest.importorskip("vllm")

from scheduling.dry import BLOCK, CONTROL, Dry


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Directory of a tiny random model."""
    return make_checkpoint(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture(scope="session")
def dry(tiny):
    """dry(**options): a scheduler with an empty cache and a make-believe model behind it."""
    configs: dict[str, Any] = {}

    def get(
        *, blocks: int = 40, cls: str = "SpanScheduler", lag: int = 0, v2: bool = False, stock: bool = False, **options
    ) -> Dry:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler

        from minipic_server import engine_kwargs, scheduler
        from minipic_server.config import SpanConfig
        from minipic_server.hashing import SpanHasher

        key = repr(sorted(options.items()))
        if key not in configs:
            defaults = {
                "dtype": "float32",
                "max_model_len": 512,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 64,
                "skip_tokenizer_init": True,
                "num_gpu_blocks_override": 64,
            }
            arguments = engine_kwargs(str(tiny), control_tokens=tuple(CONTROL), **{**defaults, **options})
            configs[key] = EngineArgs(**arguments).create_engine_config()
        config = configs[key]
        config.cache_config.num_gpu_blocks = blocks
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        kind = Scheduler if stock else getattr(scheduler, cls)
        made = kind(config, _kv_config(blocks), _NoGrammar(), block_size=BLOCK, log_stats=True)
        made.use_v2_model_runner = v2
        plain = get_request_block_hasher(BLOCK, hash_fn)
        hasher = plain if stock else SpanHasher(SpanConfig.of(config), hash_fn, plain)
        return Dry(made, hasher, blocks, lag)

    return get


class _NoGrammar:
    """The structured output manager of an engine that has no such request."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: name != "should_advance"


def _kv_config(blocks: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    return KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
