"""Reads GGUF files: metadata and tensors, as numpy arrays. Only what the bundled model needs (F32, Q4_1, Q8_0)."""

import mmap
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

MAGIC: Final = b"GGUF"
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# Bytes of one block of weights, by tensor type, as laid out in memory. d: scale, m: minimum, q: quants.
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_WEIGHTS_PER_BLOCK: Final = 32
_BLOCKS: Final = {
    _Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    _Q8_0: np.dtype([("d", "<f2"), ("q", "i1", 32)]),
}


class GGUFError(ValueError):
    """The file is no GGUF file, is cut short, or uses a part of the format that is not read here."""


class TensorInfo(NamedTuple):
    """Where a tensor lies."""

    shape: tuple[int, ...]  # rows first, as numpy has it (GGUF writes the fastest axis first)
    kind: int  # GGML tensor type
    offset: int  # bytes from the start of the file


class GGUFFile:
    """An open GGUF file.

    Attributes:
        metadata: key to value, in the file's order.
        tensors: name to place, in the file's order.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and read its header. Raises GGUFError, OSError."""
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:  # an empty file cannot be mapped
                raise GGUFError(f"{path.name} is empty") from error
        reader = _Reader(self._data)
        try:
            if reader.take(4) != MAGIC:
                raise GGUFError(f"{path.name} is not a GGUF file")
            version = reader.scalar("<I")
            if version not in (2, 3):
                raise GGUFError(f"{path.name} has GGUF version {version}; 2 and 3 are read")
            tensors, entries = reader.scalar("<Q"), reader.scalar("<Q")
            self.metadata: dict[str, Any] = {}
            for _ in range(entries):
                key = reader.string()
                self.metadata[key] = reader.value(reader.scalar("<I"))
            places = [reader.tensor_info() for _ in range(tensors)]
        except struct.error as error:
            raise GGUFError(f"{path.name} ends inside its header") from error
        alignment = self.metadata.get("general.alignment", 32)
        data = -(-reader.at // alignment) * alignment
        self.tensors = {name: info._replace(offset=data + info.offset) for name, info in places}

    def load(self, name: str) -> np.ndarray:
        """A tensor's values, dequantised. Returns float32 of the tensor's shape.

        Raises:
            GGUFError: a type of tensor that is not read here, or the file is cut short.
        """
        info = self.tensors[name]
        count = int(np.prod(info.shape))
        dtype = np.dtype("<f4") if info.kind == _F32 else _BLOCKS.get(info.kind)
        if dtype is None:
            raise GGUFError(f"tensor {name!r} has GGML type {info.kind}; F32, Q4_1 and Q8_0 are read")
        items = count if info.kind == _F32 else count // _WEIGHTS_PER_BLOCK
        if info.offset + items * dtype.itemsize > len(self._data):
            raise GGUFError(f"the file ends inside tensor {name!r}")
        # A copy, so that no array keeps the mapping open.
        stored = np.frombuffer(self._data, dtype, items, info.offset).copy()
        values = stored if info.kind == _F32 else dequantize(stored, info.kind)
        return values.reshape(info.shape)

    def close(self) -> None:
        """Release the mapping."""
        self._data.close()

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dequantize(blocks: np.ndarray, kind: int) -> np.ndarray:
    """Weights of quantised blocks. blocks: [n] of the type's struct; returns [n, 32] float32."""
    scale = blocks["d"].astype(np.float32)[:, None]
    quants = blocks["q"]
    if kind == _Q8_0:
        return quants.astype(np.float32) * scale
    # Q4_1: the low halves of the 16 bytes are the block's first 16 weights, the high halves its last 16.
    nibbles = np.concatenate([quants & 15, quants >> 4], axis=1)
    return nibbles.astype(np.float32) * scale + blocks["m"].astype(np.float32)[:, None]


class _Reader:
    """Cursor over the header; a short read raises struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise struct.error("cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.take(self.scalar("<Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise GGUFError(f"metadata of unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def tensor_info(self) -> tuple[str, TensorInfo]:
        name = self.string()
        shape = tuple(self.scalar("<Q") for _ in range(self.scalar("<I")))
        return name, TensorInfo(shape[::-1], self.scalar("<I"), self.scalar("<Q"))
