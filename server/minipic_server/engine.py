"""Starting an engine for spans: the keyword arguments of ``vllm.LLM``, the same that ``minipic serve`` passes."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from minipic_sdk.layout import ControlTokens
from minipic_server.config import KEY, SpanConfig
from minipic_server.envs import SWITCH

DEFAULT_BLOCK_SIZE = 16
BLOCK_STEP = 16  # what FlashAttention's pages and the CPU's attention are made of
PIN_SHARE = 0.5


def engine_kwargs(
    model: str,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    control_tokens: tuple[int, int, int] | None = None,
    fingerprint: str | None = None,
    async_scheduling: bool | None = None,
    device: str | None = None,
    pin_share: float = PIN_SHARE,
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
        pin_share: of the KV cache, that clients may pin spans in; 0 to 1.
        options: further vLLM engine arguments; they win over ours where they don't contradict spans.

    Raises:
        ValueError: an option that the plugin itself must set, a block size that attention can't have, control tokens
            that are not three, or a share that is none.
    """
    check_block_size(block_size)
    if not 0 <= pin_share <= 1:
        raise ValueError(f"pin_share must be between 0 and 1, got {pin_share}")
    if control_tokens is None:
        from minipic_sdk.profile import ModelProfile

        profile = ModelProfile.from_directory(model, block_size=block_size)
        control = profile.control_tokens
        fingerprint = profile.fingerprint if fingerprint is None else fingerprint
    else:
        control = ControlTokens(*control_tokens)
    if len(set(control)) < len(control):
        raise ValueError(f"control_tokens={tuple(control)}: SSEP, PDEP and PAD must be three ids")
    for name in ("worker_cls", "scheduler_cls"):
        if name in options:
            raise ValueError(f"{name} is set by MiniPIC")
    if device is None:
        from vllm.platforms import current_platform

        # Asking torch would touch CUDA, and vLLM's engine process, a fork, could not use it any more.
        device = "cuda" if current_platform.is_cuda() else "cpu"
    config = SpanConfig(control, block_size, fingerprint or "", model, pin_share)
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


def check_block_size(size: int) -> None:
    """Raise ``ValueError`` for a block size that attention can't have, on a CPU or a GPU."""
    if size < BLOCK_STEP or size % BLOCK_STEP:
        raise ValueError(f"block size {size}: it must be 16, 32, 64 or another multiple of {BLOCK_STEP}")


def switch_on() -> None:
    """Turn the plugin on for this process and its children; idempotent."""
    os.environ[SWITCH] = "1"
    if "VLLM_PLUGINS" in os.environ:
        os.environ["VLLM_PLUGINS"] = _allowed_plugins()
    from minipic_server.plugin import register

    # vLLM may have loaded its plugins in this process already, before the switch was on.
    register()


def server_command(model: str, extra: Sequence[str] = (), **options: Any) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of vLLM's OpenAI server for spans; what ``minipic serve`` runs.

    Args:
        model: a local directory or a hub id.
        extra: vLLM options as its command line takes them, passed through.
        options: of ``engine_kwargs``.
    """
    kwargs = engine_kwargs(model, **options)
    # `vllm serve` looks up a distribution named vllm, which the CPU wheel isn't; the module works for both.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    given = {option.split("=")[0] for option in extra if option.startswith("--")}
    for name, value in kwargs.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in given:
            if name in ("block_size", "worker_cls", "scheduler_cls", "attention_backend"):
                raise ValueError(f"{flag} is set by MiniPIC itself")
            continue
        if value is True or value is False:
            command.append(flag if value else f"--no-{flag[2:]}")
        else:
            command += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    environment = {**os.environ, SWITCH: "1", "VLLM_PLUGINS": _allowed_plugins()}
    return [*command, "--enable-prompt-tokens-details", *extra], environment


def _allowed_plugins() -> str:
    """VLLM_PLUGINS with us in it; setting it makes an allow-list for all groups, so it names every other one too."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        return allowed if "minipic" in allowed.split(",") else f"{allowed},minipic".strip(",")
    groups = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins")
    names = {point.name for group in groups for point in entry_points(group=group)}
    return ",".join(sorted(names | {"minipic"}))
