"""verl's checkpoint engine: the calls of its manager in their order, over real files and a daemon's API."""

import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.checkpoints import model, write
from support.trainer_head import tensors_of

from patchswarm.daemon.local.errors import LocalError, VersionNotReadyError
from patchswarm.daemon.local.hooks import verl as hook
from patchswarm.daemon.local.hooks.verl import PatchswarmCheckpointEngine
from patchswarm.daemon.local.tensors import Tensors

BUCKET = 1 << 20


class Registry:
    """verl's CheckpointEngineRegistry, as its base module has it."""

    engines: dict = {}  # noqa: RUF012

    def register(backend):  # noqa: N805 -- so it stands there
        def wrapper(cls):
            Registry.engines[backend] = cls
            return cls

        return wrapper


@pytest.fixture
def verl(monkeypatch):
    """A stand-in for verl where only its registry is needed."""
    base = ModuleType("verl.checkpoint_engine.base")
    base.CheckpointEngineRegistry = Registry
    for name, module in {
        "verl": ModuleType("verl"),
        "verl.checkpoint_engine": ModuleType("verl.checkpoint_engine"),
        "verl.checkpoint_engine.base": base,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    Registry.engines.clear()
    return Registry


def test_importing_the_module_registers_the_backend(verl):
    importlib.reload(hook)
    assert verl.engines["patchswarm"] is hook.PatchswarmCheckpointEngine


def test_without_verl_there_is_nothing_to_register():
    assert hook.register() is False


@pytest.fixture
def numpy_for_torch(monkeypatch):
    """Tensors of the client, asked as torch, are numpy's: all else is real."""
    monkeypatch.setattr(Tensors, "torch", lambda tensors, name: tensors[name].copy())


async def update(actors, replicas, weights, step):
    """One update, as CheckpointEngineManager.update_weights makes it; what each replica has received."""
    workers = [*actors, *replicas]
    metadata = [worker.prepare() for worker in workers]
    actor_kwargs, rollout_kwargs = type(actors[0]).build_topology(len(actors), len(replicas), metadata)
    for group, kwargs in ((actors, actor_kwargs), (replicas, rollout_kwargs)):
        assert all(len(values) == len(group) for values in kwargs.values())
        for number, worker in enumerate(group):
            worker.init_process_group(**{name: values[number] for name, values in kwargs.items()})

    async def receive(replica):
        return {name: tensor async for name, tensor in replica.receive_weights(global_steps=step)}

    async with asyncio.TaskGroup() as tasks:
        sending = [tasks.create_task(actor.send_weights(weights(), global_steps=step)) for actor in actors]
        receiving = [tasks.create_task(receive(replica)) for replica in replicas]
    for worker in workers:
        worker.finalize()
    return [each.result() for each in sending], [each.result() for each in receiving]


@pytest.fixture
def workers(head, numpy_for_torch):
    """Two actor ranks, the first of which is the master, and two replicas."""
    actors = [PatchswarmCheckpointEngine(is_master=rank == 0, bucket_size=BUCKET, stream="qwen") for rank in range(2)]
    return actors, [PatchswarmCheckpointEngine(bucket_size=BUCKET, timeout_s=30) for _ in range(2)]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_updates_go_from_the_actor_to_every_replica(workers, head, random, asynchronous):
    actors, replicas = workers
    truth, walked = {}, []

    def weights():
        for name in ("embed", "up"):
            walked.append(name)
            yield name, truth[name]

    async def weights_async():
        for each in weights():
            yield each

    for step in (1, 2, 1):  # the trainer may go back, versions do not
        truth = {"embed": random.normal(size=(5, 4)).astype(np.float32), "up": random.normal(size=(4,))}
        walked.clear()
        metrics, received = await update(actors, replicas, weights_async if asynchronous else weights, step)
        for got in received:
            assert got.keys() == truth.keys()
            for name, array in truth.items():
                np.testing.assert_array_equal(got[name], array)
        assert sorted(walked) == ["embed", "embed", "up", "up"], "every rank walks the weights to the end"
        assert metrics[0]["patchswarm/version"] == len(head.labels())
        assert metrics[1] == {}
    assert head.labels() == ["step 1", "step 2", "step 1"]
    assert all(lease.gone for lease in head.api.service.leases.values()), "no lease outlives an update"


async def test_weights_are_cast_on_the_way(head):
    actor = PatchswarmCheckpointEngine(BUCKET, is_master=True, dtype="float16")
    await update([actor], [], lambda: iter([("x", np.ones(3, np.float32))]), 1)
    assert tensors_of(head.path())["x"][0] == "F16"


async def test_replicas_get_torchs_own_tensors_bit_for_bit(head):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]' to test with it")
    truth = {
        "embed": torch.randn(6, 4).to(torch.bfloat16),
        "scale": torch.randint(0, 256, (5,), dtype=torch.uint8).view(torch.float8_e4m3fn),
        "norm": torch.tensor([0.0, -0.0, float("nan")]),
    }
    actor = PatchswarmCheckpointEngine(BUCKET, is_master=True)
    _, (received,) = await update([actor], [PatchswarmCheckpointEngine(BUCKET)], lambda: iter(truth.items()), 1)
    for name, tensor in truth.items():
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name].view(torch.uint8), tensor.view(torch.uint8))


async def test_a_version_that_does_not_come_is_an_error_not_a_hang(workers, head):
    _, (replica, _) = workers
    replica = PatchswarmCheckpointEngine(BUCKET, timeout_s=0.05)
    head.client.publish(write_one(head), stream="qwen", label="step 1")
    replica.init_process_group(after=(1, 1))
    with pytest.raises(VersionNotReadyError, match="no version of 'qwen' after 1"):
        async for _ in replica.receive_weights(global_steps=2):
            pass


async def test_another_trainers_version_is_not_taken_for_this_one(workers, head):
    _, (replica, _) = workers
    head.client.publish(write_one(head), stream="qwen", label="step 9")
    replica.init_process_group(after=None)
    with pytest.raises(LocalError, match="labelled 'step 9' where 'step 2' was to come"):
        async for _ in replica.receive_weights(global_steps=2):
            pass


async def test_a_reader_that_stops_half_way_lets_go_of_the_version(workers, head):
    _, (replica, _) = workers
    head.client.publish(write_one(head), stream="qwen", label="step 2")
    replica.init_process_group(after=None)
    receiving = replica.receive_weights(global_steps=2)
    await anext(receiving)
    await receiving.aclose()
    assert all(lease.gone for lease in head.api.service.leases.values())


def test_there_is_one_master(workers):
    actors, _ = workers
    with pytest.raises(LocalError, match="0 of 2 verl workers are masters"):
        PatchswarmCheckpointEngine.build_topology(1, 1, [{}, {}])
    assert actors[1].prepare() == {}


async def test_tensors_go_to_the_device_that_is_asked_for(head, monkeypatch):
    monkeypatch.setattr(Tensors, "torch", lambda _, name: SimpleNamespace(to=lambda device: (name, device)))
    head.client.publish(write_one(head), stream="qwen", label="")
    replica = PatchswarmCheckpointEngine(BUCKET, device="cuda:1")
    replica.init_process_group(after=None)
    received = [each async for each in replica.receive_weights()]
    assert all(tensor == (name, "cuda:1") for name, tensor in received)


def write_one(head):
    return write(head.api.service.root.parent / "one", model(layers=1, width=16))
