"""Span attention on vLLM's CPU platform (model runner V1)."""
