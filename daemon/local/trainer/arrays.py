"""Tensors as the bytes that a safetensors file holds: torch on any device, numpy, or raw; in bounded pieces.

torch is never imported here: who hands in a torch tensor has it already.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from .errors import BadTensorError

DTYPES: Final[dict[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "complex64": "C64",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
"""torch's and numpy's (with ml_dtypes) names of dtypes, and safetensors' names for them."""

PIECE_BYTES: Final = 16 * 1024 * 1024
"""How much of a tensor is on its way at once; two such pieces of pinned memory serve a CUDA device."""

_CASTABLE: Final = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class Spec:
    """What a safetensors header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    width_bytes: int
    """Bytes of one element, which the file aligns it to; 1 for packed dtypes."""

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """A tensor as bytes already: for dtypes that numpy does not know. `data` is contiguous, little-endian."""

    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]
    data: Any
    """bytes, memoryview or numpy array of any dtype."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Which floating tensors are converted on the way: wider 8-bit floats, integers and packed dtypes never are."""

    dtype: Any = None
    """A torch or numpy dtype or its name; None leaves every tensor what it is."""
    keep: Sequence[str] = ()
    """Glob patterns of tensors that stay what they are, such as "*.e_score_correction_bias"."""

    @property
    def name(self) -> str | None:
        """Safetensors' name of the dtype. Raises BadTensorError for one that floats cannot become."""
        if self.dtype is None:
            return None
        name = DTYPES.get(_dtype_name(self.dtype), "")
        if name not in _CASTABLE:
            raise BadTensorError(f"dtype={self.dtype!r}: tensors can be cast to float64, float32, float16 or bfloat16")
        return name

    def applies(self, name: str, dtype: str) -> bool:
        """Whether a tensor of safetensors' `dtype` is converted."""
        if self.dtype is None or dtype not in _CASTABLE or dtype == self.name:
            return False
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep)


def spec_of(name: str, tensor: Any, cast: Cast) -> Spec:
    """How `tensor` will stand in a file. Raises BadTensorError, naming the tensor."""
    if isinstance(tensor, Raw):
        size = memoryview(tensor.data).nbytes
        return Spec(tensor.dtype, tuple(tensor.shape), size, _width(prod(tensor.shape), size))
    if (problem := problem_of(tensor)) is not None:
        raise BadTensorError(f"tensor {name!r} {problem}")
    dtype = DTYPES.get(_dtype_name(tensor.dtype))
    if dtype is None:
        raise BadTensorError(f"tensor {name!r} is {tensor.dtype}, which safetensors has no name for: convert it first")
    shape, width = tuple(int(each) for each in tensor.shape), int(tensor.dtype.itemsize)
    if cast.applies(name, dtype):
        assert cast.name is not None
        dtype, width = cast.name, {"F64": 8, "F32": 4}.get(cast.name, 2)
    size = prod(shape) * width
    if dtype == "F4":  # torch counts bytes of two values, safetensors counts values
        shape = (*shape[:-1], shape[-1] * 2) if shape else (2,)
    return Spec(dtype, shape, size, width)


def identity(tensor: Any) -> object | None:
    """Equal for two tensors that are the same elements of the same memory; None where that cannot be told."""
    if isinstance(tensor, Raw) or problem_of(tensor) is not None or 0 in tensor.shape:
        return None
    if _is_torch(tensor):
        return str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
    return tensor.__array_interface__["data"][0], tensor.shape, tensor.strides, str(tensor.dtype)


class Reader:
    """Reads tensors piece by piece, with pinned buffers that serve one tensor after another. Not thread-safe."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = max(piece_bytes, 16)
        self._pinned: list[Any] | None = None

    def pieces(self, name: str, tensor: Any, cast: Cast) -> Iterator[memoryview]:
        """The tensor's bytes in row-major order. A piece is valid until the next one is asked for."""
        if isinstance(tensor, Raw):
            yield memoryview(tensor.data).cast("B") if memoryview(tensor.data).nbytes else memoryview(b"")
        elif 0 not in tensor.shape:
            yield from self._torch(name, tensor, cast) if _is_torch(tensor) else self._numpy(name, tensor, cast)

    def _numpy(self, name: str, array: Any, cast: Cast) -> Iterator[memoryview]:
        import numpy as np

        target = self._target(name, array, cast)
        for part in _parts(array, lambda each: each.flags.c_contiguous, self._limit(array, target)):
            piece = np.ascontiguousarray(part if target is None else part.astype(target))
            if sys.byteorder == "big" or piece.dtype.byteorder == ">":
                piece = piece.astype(piece.dtype.newbyteorder("<"))
            yield piece.reshape(-1).view(np.uint8).data

    def _torch(self, name: str, tensor: Any, cast: Cast) -> Iterator[memoryview]:
        torch = sys.modules["torch"]
        target = self._target(name, tensor, cast)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        parts = (
            _flat(part if target is None else part.to(target)).view(torch.uint8)
            for part in _parts(tensor, lambda each: each.is_contiguous(), self._limit(tensor, target))
        )
        if tensor.device.type == "cuda":
            yield from self._through_pinned(torch, parts)
        else:
            for part in parts:
                yield memoryview(part.cpu().numpy())

    def _through_pinned(self, torch: Any, parts: Iterator[Any]) -> Iterator[memoryview]:
        """Copy pieces to the host through two pinned buffers: one is filled while the other is being written out."""
        if self._pinned is None:
            try:
                self._pinned = [torch.empty(self._piece_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            except RuntimeError:  # little memory may be locked here: pageable copies are slower, not wrong
                self._pinned = []
        if not self._pinned:
            for part in parts:
                yield memoryview(part.cpu().numpy())
            return
        before: tuple[Any, Any] | None = None
        for number, part in enumerate(parts):
            buffer = self._pinned[number % 2][: part.numel()]
            buffer.copy_(part, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(part.device))
            if before is not None:
                before[1].synchronize()
                yield memoryview(before[0].numpy())
            before = buffer, copied
        if before is not None:
            before[1].synchronize()
            yield memoryview(before[0].numpy())

    @staticmethod
    def _target(name: str, tensor: Any, cast: Cast) -> Any:
        """What to convert to, as the tensor's own library names it, or None."""
        if not cast.applies(name, DTYPES[_dtype_name(tensor.dtype)]):
            return None
        wanted = _dtype_name(cast.dtype)
        if _is_torch(tensor):
            return getattr(sys.modules["torch"], wanted)
        import numpy as np

        try:
            return np.dtype(wanted)
        except TypeError:
            raise BadTensorError(
                f"tensor {name!r}: numpy has no {wanted}; import ml_dtypes, or hand in torch tensors"
            ) from None

    def _limit(self, tensor: Any, target: Any) -> int:
        """Elements of one piece, before and after conversion within the size of a piece."""
        widest = max(int(tensor.dtype.itemsize), 0 if target is None else int(target.itemsize))
        return max(1, self._piece_bytes // widest)


def _parts(array: Any, contiguous: Any, limit: int) -> Iterator[Any]:
    """Views of at most `limit` elements that are, in order, all of `array`."""
    count = prod(array.shape)
    if count <= limit:
        yield array
    elif contiguous(array):
        flat = array.reshape(-1)
        for start in range(0, count, limit):
            yield flat[start : start + limit]
    else:
        rows = limit // (count // array.shape[0])
        if rows:
            for start in range(0, array.shape[0], rows):
                yield array[start : start + rows]
        else:
            for row in array:
                yield from _parts(row, contiguous, limit)


def _flat(part: Any) -> Any:
    """A torch tensor in one dimension of stride 1, which a contiguous tensor of a single element need not have."""
    return part.contiguous().reshape(-1).as_strided((part.numel(),), (1,))


def problem_of(tensor: Any) -> str | None:
    """Why a value of a state dict has no plain bytes of its own, or None when it has."""
    if isinstance(tensor, Raw):
        return None
    if hasattr(tensor, "full_tensor"):
        return (
            "is a DTensor, of which this rank holds a part: have every rank stage its share with "
            "`share(state_dict, rank, world)`"
        )
    if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
        return f"is {type(tensor).__name__}, not a tensor: leave it out of the state dict"
    if _is_torch(tensor):
        if tensor.device.type == "meta":
            return "is on the meta device and has no data: load or gather it first"
        if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
            return "is sparse or quantized by torch: convert it to a plain tensor first"
    return None


def _width(count: int, size: int) -> int:
    return size // count if count and size % count == 0 else 1


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _dtype_name(dtype: Any) -> str:
    """A dtype's plain name: of torch.bfloat16, np.dtype("float32"), np.float32 or "bfloat16"."""
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    if isinstance(dtype, type):
        return dtype.__name__.rstrip("_")  # np.float32, np.bool_
    name = getattr(dtype, "name", None)
    return name if isinstance(name, str) else str(dtype).removeprefix("torch.")
