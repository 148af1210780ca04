"""MiniPIC's vLLM plugin: position-independent KV caching without a fork."""
