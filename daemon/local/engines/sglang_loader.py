"""SGLang's custom weight loader: each worker takes the delta from its host's daemon and writes it over its parameters.

Start the server with `--custom-weight-loader patchswarm.daemon.local.engines.sglang_loader.load`, and send
POST /update_weights_from_tensor the body that `request` makes. What is sent is a few words; the weights come from the
daemon. The contract is that of `update_weights_from_tensor` in `managers/io_struct.py`: the loader is called with the
model and the named tensors of the request, and what it raises ends the request.
"""

from __future__ import annotations

import base64
import importlib
import pickle
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import torch

from ...errors import BadInputError
from .in_place import Move, move_in_place

LOADER: Final = f"{__name__}.load"
"""What `load_format` and --custom-weight-loader are."""

NAME: Final = "patchswarm.move"
"""Name of the one tensor that is sent: a Move as JSON, in bytes."""


def request(
    stream: str, start: int, end: int, *, socket: str | None = None, token: str = "", ranks: int = 1
) -> dict[str, Any]:
    """The body of POST /update_weights_from_tensor that brings a server from version `start` to `end`.

    `ranks` is the server's tensor parallel size. Its cache is not flushed: do so when nothing runs.
    """
    text = msgspec.json.encode(Move(stream=stream, start=start, end=end, socket=socket, token=token))
    tensor = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    # By value, not by shared memory: whoever sends this may be gone, or on another host, when it is read.
    serialized = base64.b64encode(pickle.dumps([(NAME, tensor)])).decode()
    return {
        "serialized_named_tensors": [serialized] * ranks,
        "load_format": LOADER,
        "flush_cache": False,
        "weight_version": str(end),
    }


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Called by SGLang on every worker. Raises BadInputError or LocalError, the model untouched."""
    tensors = dict(named_tensors)
    if set(tensors) != {NAME}:
        raise BadInputError(f"the loader takes one tensor {NAME!r}, not {sorted(tensors)[:5]}; see {__name__}.request")
    try:
        move = msgspec.json.decode(tensors[NAME].cpu().numpy().tobytes(), type=Move)
    except msgspec.DecodeError as error:
        raise BadInputError(f"the loader was sent no move: {error}", remedy="call it through the gateway") from None
    rank, world = _place()
    move_in_place(model, move, rank=rank, world=world)


def _place() -> tuple[int, int]:
    """(rank, world) of this worker among the tensor parallel ones: (0, 1) outside of SGLang.

    A worker of several that took itself for the only one would be refused, since no shape fits.
    """
    try:
        parallel = importlib.import_module("sglang.srt.distributed")
    except ImportError:
        return 0, 1
    return parallel.get_tensor_model_parallel_rank(), parallel.get_tensor_model_parallel_world_size()
