"""A version's tensors, by name, straight from the page cache: mapped, never copied."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .errors import AmbiguousTensorError, UnknownTensorError
from .model import TensorInfo, VersionInfo

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# safetensors' dtypes as numpy has them. What numpy does not know comes as raw integers of the same width, and
# what is packed several to a byte comes as its bytes.
NUMPY: Final[dict[str, str]] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "C64": "<c8",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
TORCH: Final[dict[str, str]] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "C64": "complex64",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}


class Tensors(Mapping[str, "NDArray[Any]"]):
    """Name to read-only numpy array over the leased slot's files.

    BF16 arrives as uint16, the 8-bit floats as uint8 and packed dtypes as their bytes: `info` has the dtype. An
    array shows the slot's memory, so it is valid only under the lease: copy what must outlive it.
    """

    def __init__(self, path: Path, version: VersionInfo, infos: Iterable[TensorInfo]) -> None:
        self.version = version
        self._path = path
        self._infos: dict[str, list[TensorInfo]] = {}
        for info in infos:
            self._infos.setdefault(info.name, []).append(info)
        self._mapped: dict[str, mmap.mmap] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __getitem__(self, name: str) -> NDArray[Any]:
        info = self.info(name)
        dtype = np.dtype(NUMPY.get(info.dtype, "u1"))
        count = info.size_bytes // dtype.itemsize
        # an empty file cannot be mapped
        array = np.frombuffer(self._map(info.file), dtype, count, info.offset) if count else np.empty(0, dtype)
        array.flags.writeable = False
        return array.reshape(storage_shape(info.shape, count))

    def info(self, name: str) -> TensorInfo:
        """Where a tensor stands, and its dtype and shape. Raises UnknownTensorError or AmbiguousTensorError."""
        found = self._infos.get(name)
        if found is None:
            raise UnknownTensorError(f"version {self.version.version} has no tensor {name!r}")
        if len(found) > 1:
            raise AmbiguousTensorError(f"tensor {name!r} is in {len(found)} files: {[info.file for info in found]}")
        return found[0]

    def torch(self, name: str) -> torch.Tensor:
        """The tensor as torch has it, over the same memory. Writing to it changes a private copy, not the slot.

        Raises ImportError without torch, and AttributeError for a dtype that the installed torch does not have.
        """
        import torch  # only those who ask for torch pay for it

        info = self.info(name)
        dtype: torch.dtype = getattr(torch, TORCH.get(info.dtype, "uint8"))
        count = info.size_bytes // dtype.itemsize
        if count == 0:
            return torch.empty(info.shape, dtype=dtype)
        tensor = torch.frombuffer(self._map(info.file), dtype=dtype, count=count, offset=info.offset)
        return tensor.reshape(storage_shape(info.shape, count))

    def release(self) -> None:
        """Forget the mappings; those that an array still shows end with it."""
        self._mapped.clear()

    def _map(self, file: str) -> mmap.mmap:
        """The file, mapped once. Private and copy-on-write, because torch takes no read-only memory."""
        if file not in self._mapped:
            descriptor = os.open(self._path / file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._mapped[file] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            finally:
                os.close(descriptor)
        return self._mapped[file]


def storage_shape(shape: list[int], count: int) -> list[int]:
    """`shape` for `count` stored elements: packed dtypes have fewer, so the last dimension shrinks, or all is flat."""
    logical = prod(shape)
    if logical == count:
        return shape
    rows = prod(shape[:-1])
    return [*shape[:-1], count // rows] if rows and count % rows == 0 else [count]
