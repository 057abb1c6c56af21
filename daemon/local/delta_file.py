"""A delta as its reader holds it: changed positions and new values by tensor, over the bytes that came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .errors import ConnectionLostError, LocalError

FORMAT: Final = "patchswarm delta 1"

WIDTHS: Final[dict[str, int]] = (
    dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1)
    | dict.fromkeys(("F16", "BF16", "U16", "I16"), 2)
    | dict.fromkeys(("F32", "U32", "I32"), 4)
    | dict.fromkeys(("F64", "U64", "I64", "C64"), 8)
)
"""Bytes of an element, by safetensors dtype. Tensors of other dtypes are addressed by the byte."""

_BITS: Final = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

T = TypeVar("T")


class _Entry(msgspec.Struct, frozen=True):
    """One tensor of the file, as its header has it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Changed:
    """What changes in one tensor: after `flat[indices] = values` its elements are the new ones.

    `indices` (k,) int32 or int64 are row-major, rising element numbers; `values` (k,) are the elements' bits as
    unsigned integers of their width. `bytewise`: elements share bytes, so both speak of the tensor's bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    indices: NDArray[Any]
    values: NDArray[Any]
    indices_at: int
    """Offset of the indices in the delta's body, bytes."""
    values_at: int

    @property
    def bytewise(self) -> bool:
        """Whether indices count bytes."""
        return self.dtype not in WIDTHS

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * (_BITS[self.dtype] if self.bytewise else 8 * WIDTHS[self.dtype]) // 8


class Delta(Mapping[str, Changed]):
    """The tensors that changed, by name. Raises LocalError for bytes that are no delta."""

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little") if raw.size >= 8 else raw.size + 1
        if start > raw.size:
            raise LocalError("the daemon sent a delta without a whole header", remedy="ask again")
        header = _decoded(raw[8:start].tobytes(), dict[str, msgspec.Raw])
        self._words = _decoded(bytes(header.pop("__metadata__", b"{}")), dict[str, str])
        if self._words.get("format") != FORMAT:
            raise LocalError(f"the daemon sent {self._words.get('format', 'something')!r}, not a {FORMAT!r}")
        self.body = raw[start:]
        """(n,) uint8: everything behind the header, the widest entries first."""
        entries = {name: _decoded(bytes(text), _Entry) for name, text in header.items()}
        tensors = _decoded(self._words.get("tensors", "{}").encode(), dict[str, tuple[str, tuple[int, ...]]])
        self._changed = {name: self._read(name, *tensors[name], entries) for name in tensors}

    def _read(self, name: str, dtype: str, shape: tuple[int, ...], entries: dict[str, _Entry]) -> Changed:
        indices, values = entries.get(f"{name}.indices"), entries.get(f"{name}.values")
        if indices is None or values is None or (dtype not in WIDTHS and dtype not in _BITS):
            raise LocalError(f"the daemon sent a delta that does not say what changes in {name!r}")
        changed = Changed(
            name,
            dtype,
            shape,
            self._array(indices, {"I32": "<i4", "I64": "<i8"}.get(indices.dtype, "")),
            self._array(values, f"<u{WIDTHS.get(dtype, 1)}"),
            indices.data_offsets[0],
            values.data_offsets[0],
        )
        places = changed.indices
        count = changed.size_bytes if changed.bytewise else prod(shape)
        rising = places.size == 0 or (places[0] >= 0 and places[-1] < count and bool(np.all(places[1:] > places[:-1])))
        if places.size != changed.values.size or not rising:
            raise LocalError(f"the daemon sent a delta that changes {name!r} at places that it does not have")
        return changed

    def _array(self, entry: _Entry, dtype: str) -> NDArray[Any]:
        first, last = entry.data_offsets
        if not dtype or not 0 <= first <= last <= self.body.size or (last - first) % np.dtype(dtype).itemsize:
            raise LocalError(f"the daemon sent a delta whose header does not fit its bytes ({entry})")
        return self.body[first:last].view(dtype)

    def __getitem__(self, name: str) -> Changed:
        return self._changed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._changed)

    def __len__(self) -> int:
        return len(self._changed)

    @property
    def stream(self) -> str:
        """Its stream."""
        return self._words["stream"]

    @cached_property
    def start(self) -> int:
        """The version that it leads from."""
        return int(self._words["from"])

    @cached_property
    def version(self) -> int:
        """The version that it leads to."""
        return int(self._words["to"])

    @property
    def start_manifest(self) -> str:
        """Identity of the version that it leads from."""
        return self._words["from_manifest"]

    @property
    def manifest(self) -> str:
        """Identity of the version that it leads to."""
        return self._words["to_manifest"]

    @property
    def label(self) -> str:
        """Label of the version that it leads to."""
        return self._words["label"]

    @property
    def elements(self) -> int:
        """Changed elements in all."""
        return sum(changed.indices.size for changed in self._changed.values())


def buffer_for(size_bytes: int | None) -> NDArray[np.uint8]:
    """Memory for a delta of this size, aligned. Raises LocalError when the daemon did not say the size."""
    if size_bytes is None:
        raise LocalError("the daemon sent a delta without its length", remedy="see whether it is of this version")
    return np.empty(size_bytes, np.uint8)


def whole(buffer: NDArray[np.uint8], left_bytes: int) -> Delta:
    """The delta in a buffer that `left_bytes` are missing from. Raises ConnectionLostError for a part of one."""
    if left_bytes:
        raise ConnectionLostError(
            f"{buffer.size - left_bytes} of {buffer.size} bytes of a delta came", remedy="ask again"
        )
    return Delta(buffer)


def _decoded(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise LocalError(f"the daemon sent a delta whose header does not decode ({error})") from None
