"""Reading a GGUF header in Python, before llama.cpp sees the file.

Some damaged files end the process inside llama.cpp's loader, so the bounds are checked here first: magic, version, counts,
string lengths, and that the file reaches as far as its last tensor. Layout: the GGUF specification of the ggml project.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

# Bounds a good way beyond any real model, so that a damaged count costs neither memory nor more than a second.
_LARGEST_COUNT: Final = 1 << 16
_LARGEST_HEADER_BYTES: Final = 1 << 28
_LARGEST_STRING_BYTES: Final = 1 << 24
_LARGEST_ARRAY: Final = 1 << 26
_LARGEST_STRING_ARRAY: Final = 1 << 21
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# (values per block, bytes per block) of each ggml tensor type this build may meet.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class NotGGUF(Exception):
    """The file is no GGUF model, or a damaged one; the message says how."""


@dataclass(frozen=True, slots=True)
class Header:
    """The parts of a header that matter before a load. Arrays are left out of `metadata`."""

    version: int
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: int = 0
    size_bytes: int = 0

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def family(self) -> str:
        """`moe` when the header names experts, else `dense`."""
        experts = self.metadata.get(f"{self.architecture}.expert_count", 0)
        return "moe" if isinstance(experts, int) and experts > 0 else "dense"

    @property
    def trained_context(self) -> int | None:
        value = self.metadata.get(f"{self.architecture}.context_length")
        return value if isinstance(value, int) else None


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise NotGGUF("the file ends inside its header")
        data = self._file.read(count)
        if len(data) != count:
            raise NotGGUF("the file ends inside its header")
        self._left -= count
        return data

    def skip(self, count: int) -> None:
        if count > self._left:
            raise NotGGUF("the file ends inside its header")
        self._file.seek(count, os.SEEK_CUR)
        self._left -= count

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        length = self.scalar("Q")
        if length > _LARGEST_STRING_BYTES:
            raise NotGGUF(f"a string of {length} bytes in the header")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            self._skip_array()
            return None
        raise NotGGUF(f"an unknown value kind {kind} in the header")

    def _skip_array(self) -> None:
        kind, count = self.scalar("I"), self.scalar("Q")
        if count > _LARGEST_ARRAY:
            raise NotGGUF(f"an array of {count} entries in the header")
        if kind in _SCALARS:
            self.skip(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            if count > _LARGEST_STRING_ARRAY:
                raise NotGGUF(f"an array of {count} strings in the header")
            for _ in range(count):
                length = self.scalar("Q")
                if length > _LARGEST_STRING_BYTES:
                    raise NotGGUF(f"a string of {length} bytes in the header")
                self.skip(length)
        else:
            raise NotGGUF(f"an array of kind {kind} in the header")


def read_header(path: str) -> Header:
    """Read and check the header of `path`. Raises `NotGGUF` with a sentence, or `OSError`."""
    if "\0" in path:
        raise NotGGUF("no path has a zero byte in it")
    status = os.stat(path)
    size = status.st_size
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # opening a pipe would wait for a writer
        raise NotGGUF("not a regular file")
    with open(path, "rb") as file:
        reader = _Reader(file, min(size, _LARGEST_HEADER_BYTES))
        if size < 24 or reader.take(4) != b"GGUF":
            raise NotGGUF("not a GGUF file")
        version = reader.scalar("I")
        if version not in (2, 3):
            raise NotGGUF(f"GGUF version {version} is not supported")
        tensors, pairs = reader.scalar("Q"), reader.scalar("Q")
        if tensors > _LARGEST_COUNT or pairs > _LARGEST_COUNT:
            raise NotGGUF("the header's counts are out of bounds")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = reader.string()
            value = reader.value(reader.scalar("I"))
            if value is not None:
                metadata[key] = value
        end = 0
        for _ in range(tensors):
            end = max(end, _tensor_end(reader))
        for key, value in metadata.items():
            if key.endswith("_epsilon") and not (isinstance(value, float) and math.isfinite(value) and value >= 0):
                raise NotGGUF(f"`{key}` is not a number of use")  # llama.cpp asserts that when it computes, not before
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise NotGGUF("the header's alignment is not a power of two")
        start = -(-file.tell() // alignment) * alignment
        needed = start + end
        if needed > size:
            raise NotGGUF(f"the file ends early (expected {needed} bytes, has {size})")
    return Header(version, metadata, tensors, size)


def _tensor_end(reader: _Reader) -> int:
    """Where a tensor's data ends, in bytes after the start of the tensor data."""
    name = reader.string()
    dimensions = reader.scalar("I")
    if not 1 <= dimensions <= 4:
        raise NotGGUF(f"the tensor {name[:64]!r} has {dimensions} dimensions")
    values = 1
    for _ in range(dimensions):
        values *= reader.scalar("Q")
    kind, offset = reader.scalar("I"), reader.scalar("Q")
    if values >= 1 << 50 or offset >= 1 << 60:
        raise NotGGUF(f"the tensor {name[:64]!r} is out of bounds")
    if kind not in _BLOCKS:
        return int(offset)  # a type newer than this table: llama.cpp judges it
    per_block, block_bytes = _BLOCKS[kind]
    return int(offset + -(-values // per_block) * block_bytes)
