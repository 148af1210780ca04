"""Starting an engine for spans: the keyword arguments of ``vllm.LLM``, the same that ``minipic serve`` passes."""

import os
from collections.abc import Mapping
from typing import Any

from minipic_sdk.layout import ControlTokens
from minipic_server.config import KEY, SpanConfig
from minipic_server.envs import SWITCH

DEFAULT_BLOCK_SIZE = 16


def engine_kwargs(
    model: str,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    control_tokens: tuple[int, int, int] | None = None,
    fingerprint: str | None = None,
    async_scheduling: bool | None = None,
    device: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Arguments for ``vllm.LLM(**engine_kwargs(model))``; also switches the plugin on in this process.

    Args:
        model: a local directory or a hub id.
        block_size: tokens per KV block, a multiple of 16.
        control_tokens: ids of SSEP, PDEP and PAD; by default what the model's profile says.
        fingerprint: of the profile that requests must match; by default the model's profile's.
        async_scheduling: as vLLM's option; by default vLLM's own default for the platform.
        device: "cpu" or "cuda"; by default what torch finds.
        options: further vLLM engine arguments; they win over ours where they don't contradict spans.

    Raises:
        ValueError: an option that the plugin itself must set.
    """
    if control_tokens is None:
        from minipic_sdk.profile import ModelProfile

        profile = ModelProfile.from_directory(model, block_size=block_size)
        control_tokens = tuple(profile.control_tokens)
        fingerprint = profile.fingerprint if fingerprint is None else fingerprint
    for name in ("worker_cls", "scheduler_cls"):
        if name in options:
            raise ValueError(f"{name} is set by MiniPIC")
    if device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    config = SpanConfig(ControlTokens(*control_tokens), block_size, fingerprint or "", model)
    scheduler = "SpanScheduler" if async_scheduling is False else "AsyncSpanScheduler"
    kwargs: dict[str, Any] = {
        "model": model,
        "block_size": block_size,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "scheduler_cls": f"minipic_server.scheduler.{scheduler}",
        "worker_cls": f"minipic_server.{'gpu' if device == 'cuda' else 'cpu'}.worker.Span{device.upper()}Worker",
        "additional_config": {KEY: config.to_dict()},
    }
    if device == "cuda":
        kwargs["attention_backend"] = "CUSTOM"
    if async_scheduling is not None:
        kwargs["async_scheduling"] = async_scheduling
    extra = options.pop("additional_config", None)
    if isinstance(extra, Mapping):
        kwargs["additional_config"] = {**extra, **kwargs["additional_config"]}
    switch_on()
    return {**kwargs, **options}


def switch_on() -> None:
    """Turn the plugin on for this process and its children; idempotent."""
    os.environ[SWITCH] = "1"
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "minipic" not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},minipic" if allowed else "minipic"
    from minipic_server.plugin import register

    # vLLM may have loaded its plugins in this process already, before the switch was on.
    register()
