"""What vLLM calls in every one of its processes at its start (entry point `vllm.general_plugins`)."""

from __future__ import annotations

from typing import Final

BACKEND: Final = "patchswarm"
"""The backend's name in vLLM's --weight-transfer-config."""


def register() -> None:
    """Make the backend known, without importing it yet. No effect in a vLLM that has no weight transfer."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:
        return
    module = f"{__package__}.vllm_transfer"
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, module, "DeltaTransferEngine")
    except ValueError:
        return  # a plugin may be called more than once in a process
