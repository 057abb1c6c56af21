"""Blocks that are sent to peers: one that takes nothing keeps nobody else waiting, and not for long."""

import asyncio
from types import SimpleNamespace

import pytest

from patchswarm.daemon.fleet import blocks as module
from patchswarm.daemon.fleet.blocks import SENT_AT_ONCE, SENT_EACH, BlockDesk
from patchswarm.protocol.messages import PIECE_BYTES

BLOCK = bytes(3 * PIECE_BYTES)


class Taker:
    """A peer as the desk sees it."""

    def __init__(self, number, *, takes=True):
        self.number, self.takes = number, takes
        self.got, self.closed = [], False

    def send(self, message):
        self.got.append(message)

    async def drained(self):
        if not self.takes:
            await asyncio.Event().wait()

    def close(self):
        self.closed = True


@pytest.fixture
def desk():
    served = []
    desk = BlockDesk(SimpleNamespace(blocks=SimpleNamespace(served=served.append)), lambda: None, lambda: 0.0)

    async def read(_manifest, _block):
        return BLOCK

    desk.read = read
    desk.served = served
    return desk


async def send_all(desk, peer, count):
    await asyncio.gather(*(desk.send(peer, number, bytes(32), number) for number in range(count)))


async def test_a_peer_that_takes_nothing_keeps_nobody_else_waiting(desk):
    deaf, honest = Taker(1, takes=False), Taker(2)
    holding = asyncio.create_task(send_all(desk, deaf, 2 * SENT_AT_ONCE))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await send_all(desk, honest, 3)
    assert len(honest.got) == 9
    assert len(deaf.got) == SENT_EACH
    holding.cancel()


async def test_a_peer_that_takes_nothing_is_hung_up_on(desk, monkeypatch):
    monkeypatch.setattr(module, "DRAIN_S", 0.01)
    deaf = Taker(1, takes=False)
    await send_all(desk, deaf, 1)
    assert deaf.closed
    assert desk.served == [1]
