"""Entry point of the ``vllm.general_plugins`` group; vLLM calls it in every process, possibly several times."""

from minipic_server.envs import switched_on


def register() -> None:
    """Hook into vLLM if this process was started for spans; otherwise change nothing (I10)."""
    if not switched_on():
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from minipic_server import patches

    # The CPU platform takes CPU_ATTN whatever is asked for, so that member is overridden; on CUDA, CUSTOM is free.
    register_backend(AttentionBackendEnum.CPU_ATTN, "minipic_server.cpu.backend.SpanCPUBackend")
    register_backend(AttentionBackendEnum.CUSTOM, "minipic_server.gpu.backend.MiniPICFlashBackend")
    patches.apply()
