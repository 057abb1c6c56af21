"""Deltas as clients read them: through the API, and bytes that are none."""

import json

import numpy as np
import pytest
from support.deltas import delta_between, delta_bytes
from support.local_service import STREAM

from patchswarm.daemon.local.aio_client import AsyncClient
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.delta_file import Delta, whole
from patchswarm.daemon.local.errors import ConnectionLostError, LoadInFullError, LocalError, UnknownVersionError

BEFORE = {"w": ("F32", (4, 2), bytes(32)), "n": ("U8", (3,), b"abc")}
AFTER = {"w": ("F32", (4, 2), bytes(20) + b"\x00\x00\x80\x3f" + bytes(8)), "n": ("U8", (3,), b"abd")}


@pytest.fixture
def offering(api):
    api.commit(1)
    api.commit(2)
    api.service.deltas[1, 2] = delta_bytes(BEFORE, AFTER)
    return api


def check(delta):
    assert (delta.stream, delta.start, delta.version, delta.label) == ("qwen", 1, 2, "step 2")
    assert (delta.start_manifest, delta.manifest) == ("a" * 64, "b" * 64)
    assert delta.elements == 2
    assert sorted(delta) == ["n", "w"]
    assert delta["w"].shape == (4, 2)
    assert delta["w"].indices.tolist() == [5]
    assert delta["w"].values.view(np.float32).tolist() == [1.0]
    assert delta["n"].indices.tolist() == [2]


def test_the_client_gives_a_delta(offering):
    check(Client(offering.api.socket).delta(STREAM, 1))
    check(Client(offering.api.socket).delta(STREAM, 1, 2))


async def test_so_does_the_async_client(offering):
    async with AsyncClient(offering.api.socket) as client:
        check(await client.delta(STREAM, 1, 2))
        with pytest.raises(LoadInFullError):
            await client.delta(STREAM, 2, 1)


def test_what_cannot_be_had_is_the_services_own_error(offering):
    client = Client(offering.api.socket)
    with pytest.raises(LoadInFullError, match="load in full"):
        client.delta(STREAM, 2, 1)
    with pytest.raises(UnknownVersionError):
        client.delta(STREAM, 7)


def test_a_part_of_a_delta_is_no_delta():
    raw = np.frombuffer(delta_bytes(BEFORE, AFTER), np.uint8)
    with pytest.raises(ConnectionLostError, match="of a delta came"):
        whole(raw, 5)
    for size in (0, 4, 20, raw.size - 1):
        with pytest.raises(LocalError):
            Delta(raw[:size])


def rewritten(change):
    """A delta's bytes with a changed header."""
    raw = delta_bytes(BEFORE, AFTER)
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return np.frombuffer(len(text).to_bytes(8, "little") + text + raw[8 + size :], np.uint8)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["__metadata__"].update(format="something else"),
        lambda header: header["__metadata__"].update(tensors="{"),
        lambda header: header["__metadata__"].update(tensors='{"w": ["F32", [2]]}'),
        lambda header: header["__metadata__"].update(tensors='{"w": ["Q9", [8]]}'),
        lambda header: header["__metadata__"].update(tensors='{"other": ["F32", [8]]}'),
        lambda header: header["w.indices"].update(dtype="F32"),
        lambda header: header["w.indices"].update(data_offsets=[0, 99]),
        lambda header: header["w.indices"].update(data_offsets=[4, 0]),
        lambda header: header["w.values"].update(data_offsets=[0, 3]),
        lambda header: header.pop("w.values"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(change):
    with pytest.raises(LocalError, match="the daemon sent"):
        Delta(rewritten(change))


def test_places_that_do_not_rise_are_refused():
    raw = delta_bytes(BEFORE, {**AFTER, "w": ("F32", (4, 2), b"\x01" * 32)})
    broken = raw.replace(np.array([2, 3], "<i4").tobytes(), np.array([3, 3], "<i4").tobytes())
    assert broken != raw
    with pytest.raises(LocalError, match="at places that it does not have"):
        Delta(np.frombuffer(broken, np.uint8))


def test_an_empty_delta_has_no_tensors():
    delta = delta_between(BEFORE, BEFORE)
    assert len(delta) == delta.elements == 0
