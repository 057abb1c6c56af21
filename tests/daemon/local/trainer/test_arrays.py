"""Tensors are read in pieces that are never larger than they may be."""

import numpy as np
import pytest

from patchswarm.daemon.local.trainer.arrays import Cast, Raw, Reader, identity, spec_of
from patchswarm.daemon.local.trainer.errors import BadTensorError


@pytest.mark.parametrize("piece_bytes", [16, 1000, 4096, 1 << 20])
@pytest.mark.parametrize("dtype", [None, "float16", "float64"])
@pytest.mark.parametrize("shape", [(), (5,), (1000,), (40, 50), (3, 1, 900), (2, 3, 4, 50)])
@pytest.mark.parametrize("transposed", [False, True])
def test_no_piece_is_larger_than_asked_for_and_together_they_are_the_tensor(shape, transposed, dtype, piece_bytes):
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    array = array.T if transposed else array
    cast = Cast(dtype)
    pieces = [bytes(piece) for piece in Reader(piece_bytes).pieces("x", array, cast)]
    assert max(map(len, pieces)) <= piece_bytes
    assert b"".join(pieces) == np.ascontiguousarray(array, dtype or np.float32).tobytes()
    assert spec_of("x", array, cast).size_bytes == sum(map(len, pieces))


def test_a_contiguous_array_is_read_where_it_lies():
    array = np.arange(10)
    (piece,) = Reader().pieces("x", array, Cast())
    array[0] = 99
    assert bytes(piece[:8]) == (99).to_bytes(8, "little")


def test_the_memory_of_a_tensor_tells_whether_it_is_the_same():
    table = np.arange(12.0).reshape(3, 4)
    assert identity(table) == identity(table.view()) == identity(table[:, :])
    for other in (table.copy(), table.T, table[:2], table.reshape(4, 3), table.view(np.int64)):
        assert identity(other) != identity(table)
    assert identity(np.empty(0)) is None
    assert identity(Raw("U8", (1,), b"x")) is None


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")])
def test_a_dtype_may_be_said_in_any_way(dtype):
    assert Cast(dtype).name == "F32"
    assert spec_of("x", np.ones(3), Cast(dtype)).dtype == "F32"


def test_a_cast_leaves_what_is_narrow_or_kept_alone():
    cast = Cast("bfloat16", ("*.scale",))
    assert cast.applies("a.weight", "F32")
    assert cast.applies("a.weight", "F16")
    for name, dtype in (("a.scale", "F32"), ("a", "BF16"), ("a", "F8_E4M3"), ("a", "I64"), ("a", "C64"), ("a", "F4")):
        assert not cast.applies(name, dtype)


def test_an_object_array_has_no_name_in_safetensors():
    with pytest.raises(BadTensorError, match="'x' is object, which safetensors has no name for"):
        spec_of("x", np.array([object()]), Cast())
