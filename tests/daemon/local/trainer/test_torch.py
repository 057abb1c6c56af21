"""A state dict of torch: every dtype and view, tied weights, DTensors of several ranks. Skipped without torch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.local_service import STREAM
from support.trainer_head import header, tensors_of

from patchswarm.daemon.local.trainer.errors import BadTensorError
from patchswarm.daemon.local.trainer.publisher import Publisher

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]' to test with it")
safetensors_torch = pytest.importorskip("safetensors.torch")

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}


def random_bits(dtype, *shape):
    """A tensor of random bits: NaNs with payloads, both zeros and infinities among them."""
    count = int(np.prod(shape)) * dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    return torch.randint(0, high, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def loaded(head):
    return {
        name: tensor
        for path in sorted(head.path().glob("*.safetensors"))
        for name, tensor in safetensors_torch.load_file(path).items()
    }


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_every_dtype_keeps_its_bits(publisher, head):
    state = {name: random_bits(dtype, 40, 8) for name, dtype in DTYPES.items()}
    publisher.publish(state)
    found = loaded(head)
    for name, tensor in state.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(found[name]), bits(tensor)), name
    assert {name: dtype for name, (dtype, _, _) in tensors_of(head.path()).items()} == {name: name for name in DTYPES}


def test_packed_4_bit_floats_are_counted_as_values(publisher, head):
    packed = torch.randint(0, 256, (4, 6), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    publisher.publish({"x": packed})
    assert tensors_of(head.path())["x"] == ("F4", (4, 12), packed.view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("piece_bytes", [16, 100, 1 << 20])
def test_views_parameters_and_lazy_conjugates_are_written_as_they_look(head, staging, piece_bytes):
    whole = torch.randn(12, 10)
    state = {
        "parameter": torch.nn.Parameter(torch.randn(5, 7)),
        "transposed": whole.T,
        "strided": whole[::2, 1:-1],
        "expanded": torch.randn(1, 6).expand(9, 6),
        "permuted": torch.randn(3, 4, 5).permute(2, 0, 1),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
    }
    Publisher(STREAM, client=head.client, staging=staging, piece_bytes=piece_bytes).publish(state)
    found = loaded(head)
    for name, tensor in state.items():
        expected = tensor.detach().resolve_conj().resolve_neg()
        assert found[name].shape == expected.shape, name
        assert torch.equal(bits(found[name]), bits(expected)), name


def test_a_cast_is_torchs_own(publisher, head):
    state = {
        "up": torch.randn(1000) * 1e3,
        "double": torch.randn(10, dtype=torch.float64),
        "mixed.bias": torch.randn(10),
        "fp8": random_bits(torch.float8_e4m3fn, 8),
        "ids": torch.arange(4),
    }
    publisher.publish(state, dtype=torch.bfloat16, keep=("*.bias",), label="step 1")
    found = loaded(head)
    for name in ("up", "double"):
        assert torch.equal(bits(found[name]), bits(state[name].to(torch.bfloat16)))
    for name in ("mixed.bias", "fp8", "ids"):
        assert torch.equal(bits(found[name]), bits(state[name]))


def test_tied_weights_are_written_once_under_the_name_of_the_embedding(publisher, head):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(50, 8)
            self.fused = torch.nn.Linear(8, 24, bias=False)
            self.lm_head = torch.nn.Linear(8, 50, bias=False)
            self.lm_head.weight = self.embed_tokens.weight

    model = Model()
    publisher.publish(model.state_dict())
    (path,) = head.path().glob("*.safetensors")
    assert sorted(loaded(head)) == ["embed_tokens.weight", "fused.weight"]
    assert header(path)["__metadata__"] == {"lm_head.weight": "embed_tokens.weight", "format": "pt"}
    missing, unexpected = safetensors_torch.load_model(Model(), path)  # safetensors' own loader ties them again
    assert (missing, unexpected) == (set(), [])


def test_a_part_of_another_tensor_is_a_tensor_of_its_own(publisher, head):
    fused = torch.randn(24, 8)
    publisher.publish({"fused": fused, "query": fused[:8], "same": fused.view(24, 8)})
    assert torch.equal(loaded(head)["query"], fused[:8])
    assert sorted(loaded(head)) == ["fused", "query"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.empty(3, device="meta"), "on the meta device"),
        (lambda: torch.eye(3).to_sparse(), "sparse or quantized"),
        (lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8), "sparse or quantized"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch says that its own quantization will go
def test_tensors_without_plain_bytes_are_named(publisher, head, make, says):
    with pytest.raises(BadTensorError, match=f"tensor 'odd' is .*{says}"):
        publisher.publish({"odd": make()})
    assert head.labels() == []


RANK = """
import sys
import torch, torch.distributed as dist
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Replicate, Shard
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.trainer.errors import BadTensorError
from patchswarm.daemon.local.trainer.publisher import Publisher, share

socket, staging, rank, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
mesh = init_device_mesh("cpu", (2,))
state = {}
for number in range(6):
    whole = torch.arange(30, dtype=torch.float32).reshape(10, 3) + 100 * number
    state[f"layer{number}"] = distribute_tensor(whole, mesh, [Shard(number % 2)])
state["norm"] = distribute_tensor(torch.ones(4), mesh, [Replicate()])
state["step"] = torch.tensor(7)
publisher = Publisher("qwen", client=Client(socket), staging=staging)
try:
    publisher.publish(state)
except BadTensorError as error:
    assert "DTensor" in str(error) and "share(" in str(error)
else:
    raise AssertionError("half a tensor was published")
publisher.stage(share(state, rank, 2), rank=rank, world=2, label="step 7", dtype=torch.bfloat16)
dist.barrier()
if rank == 0:
    print(publisher.commit(world=2, label="step 7"))
dist.barrier()
dist.destroy_process_group()
"""


def test_dtensors_of_two_ranks_become_one_version(head, staging, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / ".tooling"), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, head.socket, staging, str(rank), tmp_path / "store"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=110) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert said[0][0] == "1\n"
    found = loaded(head)
    for number in range(6):
        expected = (torch.arange(30, dtype=torch.float32).reshape(10, 3) + 100 * number).to(torch.bfloat16)
        assert torch.equal(found[f"layer{number}"], expected)
    assert torch.equal(found["norm"], torch.ones(4, dtype=torch.bfloat16))
    assert found["step"] == 7
    assert len(list(head.path().glob("*.safetensors"))) == 3, "rank 1 has a file of floats, rank 0 one of integers too"
