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


class FakeTorch:
    """What copies through pinned memory touch of torch, over numpy: a copy is made when its event is waited for."""

    uint8 = np.uint8

    def __init__(self, *, refuse=False):
        self.refuse = refuse
        self.pending = []
        self.allocated = []
        self.cuda = self

    class Buffer:
        def __init__(self, torch, array):
            self.torch, self.array = torch, array

        def __getitem__(self, key):
            return FakeTorch.Buffer(self.torch, self.array[key])

        def copy_(self, part, *, non_blocking):
            assert non_blocking
            self.torch.pending.append(lambda: np.copyto(self.array, part.array))

        def numpy(self):
            return self.array

    class Part:
        device = "cuda:0"

        def __init__(self, array):
            self.array = array

        def numel(self):
            return self.array.size

        def cpu(self):
            return self

        def numpy(self):
            return self.array

    class Event:
        def record(self, _stream):
            pass

        def synchronize(self):
            self.torch.pending.pop(0)()

    def empty(self, size, *, dtype, pin_memory):
        assert pin_memory
        if self.refuse:
            raise RuntimeError("cannot lock so much memory")
        self.allocated.append(size)
        return FakeTorch.Buffer(self, np.zeros(size, dtype))

    def current_stream(self, device):
        assert device == "cuda:0"

    def __getattribute__(self, name):
        if name == "Event":
            return type("Event", (FakeTorch.Event,), {"torch": self})
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_pieces_of_a_device_pass_through_two_pinned_buffers_in_order(count, refuse):
    truth = [np.full(16 if number < count - 1 else 5, number + 1, np.uint8) for number in range(count)]
    torch, reader = FakeTorch(refuse=refuse), Reader(16)
    for _ in range(2):  # the second tensor uses the same buffers
        pieces = reader._through_pinned(torch, (FakeTorch.Part(array) for array in truth))
        assert [bytes(piece) for piece in pieces] == [array.tobytes() for array in truth]
    assert torch.allocated == ([] if refuse else [16, 16])
    assert torch.pending == []
