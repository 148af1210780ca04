"""Writes safetensors files in bfloat16, which numpy lacks, one tensor at a time."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from minipic_cli.models.gguf import GGUFError

_BYTES = 2  # of a bfloat16


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, ties to even. values: float32, finite; returns the bits, uint16, same shape."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write ``tensors`` (name, float32 values) in the order and with the shapes of ``shapes``. Raises OSError."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + _BYTES * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for (name, shape), (given, values) in zip(shapes.items(), tensors, strict=True):
            if (name, shape) != (given, values.shape):
                raise GGUFError(f"tensor {given!r} {values.shape} where {name!r} {shape} was announced")
            file.write(to_bfloat16(values).tobytes())
