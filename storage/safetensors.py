"""The regions of a safetensors file, from its header alone.

Format (https://huggingface.co/docs/safetensors): 8 bytes little-endian length N, N bytes of JSON that map each
tensor's name to dtype, shape and [begin, end) within the data that follow. The header is read by hand because
the library gives tensors, not byte offsets; tests hold it against the library.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ..protocol.elements import BITS, SAFETENSORS_KINDS, Kind, width_bytes
from ..protocol.layout import Region, Role
from .errors import NotACheckpointError

MAX_HEADER_BYTES: Final = 100_000_000
"""The library's own limit."""

LENGTH_BYTES: Final = 8

# Bits per element of dtypes that have no kind of their own; a dtype in neither table is not checked against its shape.
_OTHER_BITS: Final = {"C64": 64, "F6_E2M3": 6, "F6_E3M2": 6}

# Tensors that carry two 4-bit values to a byte under a wider dtype, told by the last part of their name alone:
# GPTQ and AWQ (`qweight`, `qzeros`, I32), compressed-tensors (`weight_packed`: I32 is INT4, U8 is NVFP4),
# gpt-oss (`…_blocks`, U8, MXFP4). A wrong guess costs some bytes on the wire and nothing else: every kind is
# a bijection over all bit patterns.
_PACKED_INT: Final = {"qweight", "qzeros", "weight_packed"}
_PACKED_INT_DTYPES: Final = {"U8", "I8", "I32"}


def element_kind(name: str, dtype: str, size: int) -> Kind:
    """How the codec looks at a tensor of `size` bytes: by dtype, refined for packed 4-bit weights by name."""
    last = name.rsplit(".", 1)[-1]
    if dtype == "U8" and (last == "weight_packed" or last.endswith("_blocks")):
        return Kind.F4
    if last in _PACKED_INT and dtype in _PACKED_INT_DTYPES:
        return Kind.I4
    kind = SAFETENSORS_KINDS.get(dtype, Kind.BYTES)
    return kind if size % width_bytes(kind) == 0 else Kind.BYTES


def header_length(prefix: bytes, file_size: int, path: str) -> int:
    """Bytes of JSON that follow the 8-byte `prefix`. Raises NotACheckpointError before anything is allocated."""
    if len(prefix) < LENGTH_BYTES:
        raise NotACheckpointError(f"{path} is truncated: {file_size} bytes cannot hold a safetensors header")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise NotACheckpointError(
            f"{path} is not a safetensors file: a header of {length} bytes is over the limit of {MAX_HEADER_BYTES}"
        )
    if LENGTH_BYTES + length > file_size:
        raise NotACheckpointError(
            f"{path} is truncated: its header ends at byte {LENGTH_BYTES + length}, the file at {file_size}"
        )
    return length


def file_regions(header: bytes, file_size: int, path: str) -> tuple[Region, ...]:
    """Regions that tile a safetensors file of `file_size` bytes with the JSON `header`.

    Raises NotACheckpointError for malformed JSON, overlapping tensors, tensors past the end of the file, or a
    size that contradicts dtype and shape.
    """
    start = LENGTH_BYTES + len(header)
    room = file_size - start
    regions = [Region(Role.HEADER, Kind.BYTES, start)]
    at = 0
    for begin, end, name, dtype, shape in sorted(_tensors(header, path)):
        if end > room:
            raise NotACheckpointError(
                f"{path} is truncated: tensor {name!r} ends at byte {start + end}, the file at {file_size}"
            )
        if begin < at:
            raise NotACheckpointError(f"{path} is malformed: tensor {name!r} overlaps the one before it")
        if begin > at:
            regions.append(Region(Role.GAP, Kind.BYTES, begin - at))
        size = end - begin
        regions.append(Region(Role.TENSOR, element_kind(name, dtype, size), size, name, dtype, shape))
        at = end
    if at < room:
        regions.append(Region(Role.GAP, Kind.BYTES, room - at))
    return tuple(regions)


def _tensors(header: bytes, path: str) -> list[tuple[int, int, str, str, tuple[int, ...]]]:
    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise NotACheckpointError(f"{path} is malformed: its header is not JSON ({error})") from None
    if not isinstance(parsed, dict):
        raise NotACheckpointError(f"{path} is malformed: its header is not a JSON object")
    tensors = []
    for name, entry in parsed.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise NotACheckpointError(
                f"{path} is malformed: tensor {name!r} lacks dtype, shape or data_offsets"
            ) from None
        if not isinstance(dtype, str) or not all(_is_count(each) for each in (*shape, begin, end)) or end < begin:
            raise NotACheckpointError(
                f"{path} is malformed: tensor {name!r} has impossible dtype, shape or data_offsets"
            )
        _check_size(path, name, dtype, shape, end - begin)
        tensors.append((begin, end, name, dtype, shape))
    return tensors


def _check_size(path: str, name: str, dtype: str, shape: tuple[int, ...], size: int) -> None:
    bits = _OTHER_BITS.get(dtype) or (BITS[SAFETENSORS_KINDS[dtype]] if dtype in SAFETENSORS_KINDS else None)
    if bits is None:
        return
    total = bits
    for each in shape:
        total *= each
    if total != size * 8:
        raise NotACheckpointError(
            f"{path} is malformed: tensor {name!r} is {dtype} of shape {list(shape)} but has {size} bytes"
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice")
    return made
