"""A head whose daemon the hooks find through the environment, as they do in a trainer."""

import importlib

import numpy as np
import pytest
from support.local_service import STREAM
from support.trainer_head import TrainerHead, loop_factory

__all__ = ["loop_factory"]


@pytest.fixture
def head(api, monkeypatch, tmp_path):
    for name in ("PATCHSWARM_REGISTER_BASE", "PATCHSWARM_WAIT_S", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATCHSWARM_STREAM", STREAM)
    monkeypatch.setenv("PATCHSWARM_SOCKET", str(api.api.socket))
    monkeypatch.setenv("PATCHSWARM_STAGING", str(tmp_path / "staging"))
    return TrainerHead(api)


@pytest.fixture
def random():
    return np.random.default_rng(9)


def load_function(path):
    """As slime and miles load a hook: by the dotted path of their command lines."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.fixture
def load():
    return load_function
