"""The port that faces the fleet: members, lanes, strangers and those who say nothing."""

import asyncio
import contextlib
import socket

import pytest
from daemon.nodes import make_head, make_member

from patchswarm.daemon.errors import InUseError
from patchswarm.daemon.fleet import listener as module
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.listener import Listener, bind
from patchswarm.protocol.lane import encode_preamble

LANE, KEY = bytes(16), bytes(32)


class Port:
    """A listener on a free loopback port, and what came through it."""

    def __init__(self, head):
        self.head = head
        self.listening = bind(f"127.0.0.1:{head.port}")
        self.controls = asyncio.Queue()
        self.lanes = asyncio.Queue()

    async def control(self, reader, writer):
        self.controls.put_nowait(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()

    async def lane(self, connection, preamble):
        connection.close()
        if not preamble.startswith(b"PSLANE1"):
            raise EOFError("the desk refuses what is no lane")
        self.lanes.put_nowait(preamble)

    async def dial(self):
        return await asyncio.open_connection("127.0.0.1", self.head.port)


@pytest.fixture
async def port(tmp_path):
    made = Port(make_head(tmp_path / "head"))
    accepting = Listener(made.listening, made.head.identity.server_tls(), made.control, made.lane)
    made.accepting = accepting
    task = asyncio.create_task(accepting.run())
    yield made
    assert not task.done(), "the listener ended"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def closed(reader):
    """Wait until the other side has closed."""
    async with asyncio.timeout(10):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def works(port, tmp_path):
    """Whether a member still gets in."""
    home = make_member(port.head, tmp_path / "member")
    tls = Identity.load(home).client_tls()
    async with asyncio.timeout(10):
        _, writer = await asyncio.open_connection("127.0.0.1", port.head.port, ssl=tls)
        assert await port.controls.get() is not None
    writer.close()
    return True


async def test_a_member_gets_a_control_connection(port, tmp_path):
    assert await works(port, tmp_path)


async def test_a_lanes_preamble_is_read_whole_however_it_is_cut(port):
    _, writer = await port.dial()
    preamble = encode_preamble(LANE, KEY)
    for byte in preamble:
        writer.write(bytes([byte]))
        await writer.drain()
    async with asyncio.timeout(10):
        assert await port.lanes.get() == preamble
    writer.close()


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": b"\0" * 100,
    "ssh": b"SSH-2.0-x\r\n",
    "broken TLS": b"\x16\x03\x01\x00\x05hello",
    "no TLS": b"\x16" * 300,
    "no lane": b"P" * 300,
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_hung_up_on_and_hurts_nobody(port, tmp_path, said):
    reader, writer = await port.dial()
    writer.write(said)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # to its end: an alert may come first
    writer.close()
    assert await works(port, tmp_path)


async def test_who_says_nothing_is_hung_up_on(port, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_BYTES_S", 0.1)
    reader, writer = await port.dial()
    assert await closed(reader)
    writer.close()
    assert await works(port, tmp_path)


async def test_a_preamble_that_never_ends_is_hung_up_on(port, monkeypatch):
    monkeypatch.setattr(module, "FIRST_BYTES_S", 0.1)
    reader, writer = await port.dial()
    writer.write(encode_preamble(LANE, KEY)[:20])
    assert await closed(reader)
    writer.close()
    assert port.lanes.empty()


async def test_a_handshake_that_never_ends_is_hung_up_on(port, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_BYTES_S", 0.1)
    reader, writer = await port.dial()
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    assert await closed(reader)
    writer.close()
    assert await works(port, tmp_path)


async def test_a_connection_that_is_closed_before_its_first_byte_hurts_nobody(port, tmp_path):
    for _ in range(5):
        _, writer = await port.dial()
        writer.transport.abort()
    assert await works(port, tmp_path)


async def test_silent_strangers_keep_nobody_out_however_many(port, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_HALF_OPEN", 4)
    strangers = [await port.dial() for _ in range(12)]
    assert await works(port, tmp_path)
    for reader, _ in strangers[:8]:
        assert await closed(reader), "the oldest make way"
    for _, writer in strangers:
        writer.close()


async def test_who_makes_way_in_the_moment_in_which_its_time_is_up_ends_nothing(port, tmp_path, monkeypatch):
    class Expiring:
        def reschedule(self, _when_s):
            raise RuntimeError("Cannot change state of expiring Timeout")

    monkeypatch.setattr(module, "MAX_HALF_OPEN", 1)
    port.accepting._half_open[Expiring()] = "127.0.0.1"
    assert await works(port, tmp_path)


async def test_a_mistake_that_a_connection_brings_to_light_costs_that_one_alone(port, tmp_path, monkeypatch):
    monkeypatch.setattr(port.accepting, "_lane", None)
    reader, writer = await port.dial()
    writer.write(encode_preamble(LANE, KEY))
    assert await closed(reader)
    writer.close()
    assert await works(port, tmp_path)


async def test_stopping_closes_what_has_not_spoken_yet(tmp_path):
    port = Port(make_head(tmp_path / "head"))
    accepting = Listener(port.listening, port.head.identity.server_tls(), port.control, port.lane)
    task = asyncio.create_task(accepting.run())
    reader, writer = await port.dial()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await closed(reader)
    writer.close()


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InUseError, match=f"{address} is in use by another program"):
            bind(address)


def test_an_address_of_another_host_is_named():
    with pytest.raises(InUseError, match=r"cannot listen on 192.0.2.1:7340"):
        bind("192.0.2.1:7340")
