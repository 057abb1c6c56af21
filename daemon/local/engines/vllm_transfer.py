"""vLLM's weight transfer: a backend whose workers take the delta from their host's daemon and apply it in place.

`vllm serve … --weight-transfer-config '{"backend": "patchswarm"}'`; the backend is there wherever this package is
installed beside vLLM, which calls `register` as a plugin. Then, as with every backend of `weight_transfer/base.py`:

    POST /init_weight_transfer_engine {"init_info": {"stream": "qwen"}}
    POST /start_weight_update
    POST /update_weights {"update_info": {"start": 6, "end": 7}}
    POST /finish_weight_update

Nothing of a version is applied when any worker refuses, except by those that had begun already: load in full then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ...errors import BadInputError
from .in_place import Move, move_in_place
from .vllm_plugin import BACKEND

__all__ = ["BACKEND", "DeltaTransferEngine", "InitInfo", "UpdateInfo"]

_NOT_INITIALISED: Final = 'POST /init_weight_transfer_engine with {"init_info": {"stream": NAME}} first'


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Which stream the engine follows, and where its host's daemon answers (None: in its usual place)."""

    stream: str
    socket: str | None = None
    token: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The version that the workers hold, and the one that they are to hold."""

    start: int
    end: int


class DeltaTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """One worker's end of it."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _init: InitInfo | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Remember what to follow: there is no rendezvous."""
        self._init = init_info

    def start_weight_update(self) -> None:
        """Nothing to prepare: parameters are written where they are."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Take the delta and write it over the model. Raises BadInputError or LocalError, the model untouched."""
        if self._init is None:
            raise BadInputError(_NOT_INITIALISED)
        move = Move(
            stream=self._init.stream,
            start=update_info.start,
            end=update_info.end,
            socket=self._init.socket,
            token=self._init.token,
        )
        move_in_place(
            self.model,
            move,
            rank=get_tensor_model_parallel_rank(),
            world=get_tensor_model_parallel_world_size(),
            partial=self.parallel_config.pipeline_parallel_size > 1,
        )

    def finish_weight_update(self) -> None:
        """Nothing to finish."""

    def shutdown(self) -> None:
        """Nothing is kept."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: dict[str, Any] | Any) -> None:
        """The trainer publishes instead: `patchswarm publish`, or `Publisher` from Python."""
        raise NotImplementedError("trainers publish to their daemon; workers take the weights from theirs")
