"""The engines' hooks on a real daemon: fused and sharded parameters, and every way in which a model does not fit."""

import asyncio
import base64
import importlib
import pickle
import sys
import types
from abc import ABC
from typing import ClassVar, Generic, TypeVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.checkpoints import Tensor, stepped, weights, write  # noqa: E402

from patchswarm.daemon.errors import BadInputError  # noqa: E402
from patchswarm.daemon.local.engines import sglang_loader, vllm_plugin  # noqa: E402
from patchswarm.daemon.local.engines.in_place import Move, move_in_place  # noqa: E402
from patchswarm.daemon.local.errors import UnknownVersionError  # noqa: E402
from tests.daemon.single import head_of, short_path  # noqa: E402

STREAM = "qwen"
HIDDEN, KV, INNER, VOCAB = 16, 8, 24, 40


def checkpoint(random):
    """A little model as it lies in its checkpoint."""
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "model.norm.weight": (HIDDEN,),
    }
    return {name: weights(shape, random) for name, shape in shapes.items()}


def tensor(values: Tensor):
    return torch.frombuffer(bytearray(values.data.tobytes()), dtype=torch.bfloat16).reshape(values.shape)


class Engine(torch.nn.Module):
    """One rank's parameters as SGLang and vLLM hold them."""

    def __init__(self, tensors, rank=0, world=1):
        super().__init__()
        whole = {name: tensor(values) for name, values in tensors.items()}
        share = {}
        for name, values in whole.items():
            dim = 1 if "o_proj" in name or "down_proj" in name else None if "norm" in name else 0
            share[name] = values if dim is None else values.chunk(world, dim)[rank]
        layer = "model.layers.0."
        held = {name: values for name, values in share.items() if not any(f"{k}_proj" in name for k in FUSED_PARTS)}
        held[f"{layer}self_attn.qkv_proj.weight"] = torch.cat(
            [share[f"{layer}self_attn.{k}_proj.weight"] for k in "qkv"]
        )
        held[f"{layer}mlp.gate_up_proj.weight"] = torch.cat(
            [share[f"{layer}mlp.{k}_proj.weight"] for k in ("gate", "up")]
        )
        self.held = torch.nn.ParameterDict()
        self._named = {
            name: torch.nn.Parameter(values.clone().contiguous(), requires_grad=False) for name, values in held.items()
        }

    def named_parameters(self, *_, **__):
        return iter(self._named.items())

    def bits(self):
        return {name: values.view(torch.int16).clone() for name, values in self._named.items()}


FUSED_PARTS = ("q", "k", "v", "gate", "up")


def same(engine, other):
    ours, theirs = engine.bits(), other.bits()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Fleet:
    def __init__(self, head, root):
        self.head = head
        self.root = root
        self.random = np.random.default_rng(3)
        self.versions = [checkpoint(self.random)]

    @property
    def socket(self):
        return str(self.head.config.local.socket)

    async def publish(self, tensors=None):
        number = len(self.versions)
        await self.head.publish(STREAM, write(self.root / f"c{number}", self.versions[-1]))
        await self.head.node.service.lease(STREAM, number, 600)
        self.versions.append(stepped(self.versions[-1], self.random, 0.05) if tensors is None else tensors)

    def move(self, start=1, end=2):
        return Move(stream=STREAM, start=start, end=end, socket=self.socket)


@pytest.fixture
async def fleet():
    with short_path() as root:
        async with head_of(root, slots=3) as head:
            fleet = Fleet(head, root)
            await fleet.publish()
            await fleet.publish()
            yield fleet


@pytest.mark.parametrize("world", [1, 2, 4])
async def test_every_rank_of_a_fused_model_ends_with_its_share_of_the_version(fleet, world):
    before, after = fleet.versions[:2]
    for rank in range(world):
        engine = Engine(before, rank, world)
        assert not same(engine, Engine(after, rank, world))
        assert await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=rank, world=world) > 0
        assert same(engine, Engine(after, rank, world))


async def test_a_model_that_holds_another_version_is_left_as_it_is(fleet):
    engine = Engine(fleet.versions[1])
    with pytest.raises(BadInputError, match="does not hold version 1: load in full"):
        await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=0, world=1)
    assert same(engine, Engine(fleet.versions[1]))


async def test_a_parameter_that_was_transformed_after_loading_is_refused(fleet):
    engine = Engine(fleet.versions[0])
    name = "model.layers.0.mlp.down_proj.weight"
    engine._named[name] = torch.nn.Parameter(engine._named[name].t().contiguous(), requires_grad=False)
    before = engine.bits()
    with pytest.raises(BadInputError, match=r"down_proj.weight' is \[24, 16\] in the engine and \[16, 24\]"):
        await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=0, world=1)
    assert all(torch.equal(engine.bits()[name], before[name]) for name in before)


async def test_replicated_heads_are_refused_not_guessed(fleet):
    """Eight ranks share eight rows of k: one each. Sixteen could not; an engine then holds each head twice."""
    engine = Engine(fleet.versions[0], 0, 4)
    with pytest.raises(BadInputError, match="load in full"):
        await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=0, world=8)


async def test_a_rank_of_a_pipeline_takes_the_layers_that_it_has(fleet):
    before, after = fleet.versions[:2]
    engine, whole = Engine(before), Engine(after)
    gone = [name for name in engine._named if "layers.0" in name]
    for name in gone:
        del engine._named[name], whole._named[name]
    with pytest.raises(BadInputError, match="no parameter for tensor"):
        await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=0, world=1)
    await asyncio.to_thread(move_in_place, engine, fleet.move(), rank=0, world=1, partial=True)
    assert same(engine, whole)


async def test_sglangs_loader_does_what_the_request_says(fleet):
    body = sglang_loader.request(STREAM, 1, 2, socket=fleet.socket, ranks=2)
    assert body["weight_version"] == "2"
    assert body["flush_cache"] is False
    assert len(body["serialized_named_tensors"]) == 2
    module, _, name = body["load_format"].rpartition(".")
    loader = getattr(importlib.import_module(module), name)
    engine = Engine(fleet.versions[0])
    named = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
    await asyncio.to_thread(loader, engine, named)
    assert same(engine, Engine(fleet.versions[1]))
    with pytest.raises(UnknownVersionError):
        await asyncio.to_thread(loader, engine, _named(sglang_loader.request(STREAM, 9, 2, socket=fleet.socket)))


def _named(body):
    return pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))


@pytest.mark.parametrize(
    "tensors", [[], [("model.norm.weight", torch.zeros(3))], [(sglang_loader.NAME, torch.zeros(4, dtype=torch.uint8))]]
)
def test_sglangs_loader_refuses_what_is_no_move(tensors):
    with pytest.raises(BadInputError, match="the loader"):
        sglang_loader.load(Engine(checkpoint(np.random.default_rng(0))), tensors)


@pytest.fixture
def vllm(monkeypatch):
    """As much of vLLM as its contract for backends has: `weight_transfer/base.py` and `factory.py`."""
    kinds = TypeVar("kinds"), TypeVar("other")

    class WeightTransferEngine(ABC, Generic[kinds]):
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.parallel_config = vllm_config.parallel_config

        def update_weights(self, update_info):
            try:
                typed = self.update_info_cls(**update_info)
            except TypeError as error:
                raise ValueError(f"Invalid update_info for {type(self).__name__}: {error}") from error
            self.receive_weights(typed)

    class Factory:
        registry: ClassVar = {}

        @classmethod
        def register_engine(cls, name, module, class_name):
            if name in cls.registry:
                raise ValueError(f"Weight transfer engine '{name}' is already registered.")
            cls.registry[name] = lambda: getattr(importlib.import_module(module), class_name)

    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine = WeightTransferEngine
    base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = type("Info", (ABC,), {})
    factory = types.ModuleType("vllm.distributed.weight_transfer.factory")
    factory.WeightTransferEngineFactory = Factory
    distributed = types.ModuleType("vllm.distributed")
    distributed.get_tensor_model_parallel_rank = lambda: 1
    distributed.get_tensor_model_parallel_world_size = lambda: 2
    for name, module in {
        "vllm": types.ModuleType("vllm"),
        "vllm.distributed": distributed,
        "vllm.distributed.weight_transfer": types.ModuleType("vllm.distributed.weight_transfer"),
        "vllm.distributed.weight_transfer.base": base,
        "vllm.distributed.weight_transfer.factory": factory,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "patchswarm.daemon.local.engines.vllm_transfer", raising=False)
    yield Factory
    sys.modules.pop("patchswarm.daemon.local.engines.vllm_transfer", None)


async def test_vllms_backend_is_registered_and_updates_its_share(fleet, vllm):
    vllm_plugin.register()
    vllm_plugin.register()  # every process of vLLM may call it again
    parallel = types.SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1)
    model = Engine(fleet.versions[0], 1, 2)
    kind = vllm.registry["patchswarm"]()
    engine = kind(None, types.SimpleNamespace(parallel_config=parallel), torch.device("cpu"), model)
    with pytest.raises(BadInputError, match="init_weight_transfer_engine"):
        engine.update_weights({"start": 1, "end": 2})
    engine.init_transfer_engine(kind.init_info_cls(stream=STREAM, socket=fleet.socket))
    engine.start_weight_update()
    with pytest.raises(ValueError, match="Invalid update_info"):
        engine.update_weights({"from": 1})
    await asyncio.to_thread(engine.update_weights, {"start": 1, "end": 2})
    engine.finish_weight_update()
    assert same(model, Engine(fleet.versions[1], 1, 2))
    engine.shutdown()


def test_a_vllm_without_weight_transfer_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", None)
    vllm_plugin.register()
