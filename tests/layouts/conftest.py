"""Engines, checkpoints and references are those of the invariants' tests."""

from invariants.conftest import _engines, checkpoint, engine, reference

__all__ = ["_engines", "checkpoint", "engine", "reference"]
