"""Deltas applied in place: bit for bit, for every dtype, on arrays and tensors, whole and in shares."""

import numpy as np
import pytest
from support.deltas import as_numpy, as_torch, delta_between, every_dtype, specials

from patchswarm.daemon.errors import BadInputError
from patchswarm.daemon.local import applying
from patchswarm.daemon.local.applying import apply_delta

BEFORE = {**every_dtype(1, 0), "specials": specials(flip=False)}
AFTER = {**every_dtype(1, 1), "specials": specials(flip=True)}
SHARDABLE = ("BF16", "F32", "F8_E4M3", "I64", "C64", "BOOL")


@pytest.fixture(scope="module")
def delta():
    return delta_between(BEFORE, AFTER)


@pytest.fixture(params=["numpy", "torch", "torch device"])
def backend(request, monkeypatch):
    """How tensors are held; "torch device" takes the way of tensors that are not in the host's memory."""
    if request.param == "numpy":
        return as_numpy
    torch = pytest.importorskip("torch")
    if request.param == "torch device":
        as_integers = applying._as_integers

        def elsewhere(changed, target, shard):
            found = as_integers(changed, target, shard)
            return torch.from_numpy(found.view(f"i{found.itemsize}" if found.itemsize > 1 else "u1"))

        monkeypatch.setattr(applying, "_as_integers", elsewhere)
    return as_torch


def bits(tensor):
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).tobytes()
    import torch

    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def test_every_dtype_is_written_bit_for_bit_in_place(backend, delta):
    held = backend(BEFORE)
    objects = dict(held)
    written = apply_delta(held, delta)
    assert written == delta.elements > 0
    for name, (_, _, data) in AFTER.items():
        assert held[name] is objects[name]
        assert bits(held[name]) == data, name


def test_shares_of_all_ranks_make_the_whole(backend, delta):
    import itertools

    for world, dim in itertools.product((2, 4, 8), (0, 1, -1)):
        for rank in range(world):
            whole = as_numpy(BEFORE)
            shares = {name: np.split(whole[name], world, dim)[rank].copy() for name in SHARDABLE}
            held = {name: shares[name] for name in SHARDABLE}
            if backend is as_torch:
                import torch

                held = {
                    name: torch.from_numpy(share.view("u1") if share.dtype == bool else share)
                    for name, share in shares.items()
                }
                held = {name: _retyped(held[name], name) for name in held}
            apply_delta(
                held, delta, rank=rank, world=world, shard_dims=dict.fromkeys(SHARDABLE, dim), ignore_missing=True
            )
            expected = as_numpy(AFTER)
            for name in SHARDABLE:
                assert bits(held[name]) == np.split(expected[name], world, dim)[rank].tobytes(), (name, world, dim)


def _retyped(tensor, dtype):
    import torch

    from patchswarm.daemon.local.tensors import TORCH

    return tensor.view(getattr(torch, TORCH[dtype]))


def test_what_is_not_sharded_is_whole_on_every_rank(backend, delta):
    held = backend(BEFORE)
    apply_delta(held, delta, rank=1, world=2, shard_dims={})
    assert all(bits(held[name]) == data for name, (_, _, data) in AFTER.items())


def test_tensors_that_are_not_contiguous_are_written_too(backend, delta):
    held = backend(BEFORE)
    held["BF16"] = held["BF16"].T.copy().T if backend is as_numpy else held["BF16"].t().contiguous().t()
    apply_delta(held, delta)
    assert bits(held["BF16"]) == AFTER["BF16"][2]


def test_pieces_do_not_depend_on_their_length(backend, delta, monkeypatch):
    monkeypatch.setattr(applying, "_PIECE", 5)
    held = backend(BEFORE)
    assert apply_delta(held, delta) == delta.elements
    assert all(bits(held[name]) == data for name, (_, _, data) in AFTER.items())


@pytest.mark.parametrize("wrong", ["missing", "dtype", "shape"])
def test_nothing_is_written_when_anything_does_not_fit(backend, delta, wrong):
    held = backend(BEFORE)
    if wrong == "missing":
        del held["specials"]
    elif wrong == "dtype":
        held["specials"] = held["F32"].reshape(-1)[:8]
    else:
        held["specials"] = held["specials"].reshape(4, 2)
    before = {name: bits(tensor) for name, tensor in held.items()}
    with pytest.raises(BadInputError, match="tensor 'specials'"):
        apply_delta(held, delta)
    assert {name: bits(tensor) for name, tensor in held.items()} == before


def test_a_share_that_cannot_be_is_named(delta):
    held = as_numpy(BEFORE)
    with pytest.raises(BadInputError, match=r"'BF16': dimension 1 of \[16, 24\] does not divide among 5 ranks"):
        apply_delta(held, delta, rank=0, world=5, shard_dims={"BF16": 1})
    with pytest.raises(BadInputError, match=r"'BF16' of shape \[16, 24\] has no dimension 2"):
        apply_delta(held, delta, rank=0, world=2, shard_dims={"BF16": 2})
    with pytest.raises(BadInputError, match="rank 2 of 2"):
        apply_delta(held, delta, rank=2, world=2)


def test_read_only_memory_is_refused(delta):
    held = as_numpy(BEFORE)
    held["F32"].flags.writeable = False
    with pytest.raises(BadInputError, match="'F32' cannot be written to"):
        apply_delta(held, delta)


def test_tensors_that_hold_another_version_are_left_alone(backend, delta):
    base, held = as_numpy(BEFORE), backend(AFTER)
    with pytest.raises(BadInputError, match="does not hold version 1: load in full"):
        apply_delta(held, delta, base=base)
    assert all(bits(held[name]) == data for name, (_, _, data) in AFTER.items())
    held = backend(BEFORE)
    assert apply_delta(held, delta, base=base) == delta.elements
    assert all(bits(held[name]) == data for name, (_, _, data) in AFTER.items())


def test_a_share_is_held_against_its_part_of_the_base(delta):
    base, whole = as_numpy(BEFORE), as_numpy(BEFORE)
    for dim in (0, 1):
        right, wrong = (np.split(whole["BF16"], 2, dim)[number].copy() for number in (1, 0))
        options = {"rank": 1, "world": 2, "shard_dims": {"BF16": dim}, "ignore_missing": True, "base": base}
        with pytest.raises(BadInputError, match="'BF16' does not hold version 1"):
            apply_delta({"BF16": wrong}, delta, **options)
        apply_delta({"BF16": right}, delta, **options)
        assert np.array_equal(right, np.split(as_numpy(AFTER)["BF16"], 2, dim)[1])
