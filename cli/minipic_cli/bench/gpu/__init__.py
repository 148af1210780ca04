"""``minipic bench gpu``: stock vLLM and MiniPIC on one GPU, same settings, in one go."""

from minipic_cli.bench.gpu.harness import run

__all__ = ["run"]
