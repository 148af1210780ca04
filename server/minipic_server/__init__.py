"""MiniPIC's vLLM plugin: position-independent KV caching without a fork."""

from minipic_server.engine import engine_kwargs, server_command

__all__ = ["engine_kwargs", "server_command"]
