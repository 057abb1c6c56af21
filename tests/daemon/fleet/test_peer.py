"""One peer: what it may say, what becomes of requests, and what happens when it does not read."""

import asyncio
import contextlib
import socket
import time

import pytest

from patchswarm.daemon.fleet import peer as module
from patchswarm.daemon.fleet.peer import Peer
from patchswarm.protocol import allowance
from patchswarm.protocol.errors import MessageError
from patchswarm.protocol.framing import FrameDecoder, encode_frame
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import (
    PIECE_BYTES,
    Lane,
    Lossy,
    Piece,
    Ping,
    Pong,
    Reason,
    Reject,
    Widen,
    decode_message,
    encode_message,
)

CHUNK = bytes(range(256)) * 600
NAME = digest(CHUNK)


class Owner:
    """A fleet that notes what it is told."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.came = asyncio.Queue()
        self.left = []
        self.lossy = []
        self.sent_bytes = 0
        self.offers = asyncio.Queue()
        self.flights = {}
        self.chunks = {NAME: CHUNK}
        self.fault = None

    def message(self, peer, message):
        if self.fault:
            raise self.fault
        self.messages.put_nowait(message)

    def lane_offered(self, peer, offer):
        self.messages.put_nowait(offer)

    def path_is_lossy(self, peer):
        self.lossy.append(peer)

    def offer_lane(self, peer):
        self.offers.put_nowait(peer)

    def piece_of(self, peer, request):
        return self.flights.get(request)

    def chunk_came(self, peer, lane, name, body):
        self.came.put_nowait((lane, name, bytes(body)))

    async def load(self, name):
        return self.chunks.get(name)

    def chunk_left(self, peer, name):
        self.left.append(name)

    def count_sent(self, peer, size_bytes):
        self.sent_bytes += size_bytes


class Wire:
    """A peer over a socket pair, and the other end as frames."""

    def __init__(self, address):
        self.owner = Owner()
        self.address = address
        self.heard = []

    async def open(self):
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        self.reader, self.writer = await asyncio.open_connection(sock=theirs)
        self.peer = Peer(self.owner, reader, writer, self.address)
        self.running = asyncio.create_task(self.peer.run())
        self.decoder = FrameDecoder()
        await asyncio.sleep(0)  # it begins
        return self

    def say(self, *messages):
        for message in messages:
            self.writer.write(encode_frame(encode_message(message)))

    async def hear(self):
        """The next message of the peer; None when it has closed."""
        async with asyncio.timeout(10):
            while not self.heard:
                try:
                    data = await self.reader.read(65536)
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                self.heard += map(decode_message, self.decoder.feed(data))
        return self.heard.pop(0)

    async def ended(self):
        async with asyncio.timeout(10):
            await self.running

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await self.writer.wait_closed()
        await self.ended()


@pytest.fixture
async def wire():
    made = await Wire(None).open()
    yield made
    await made.close()


@pytest.fixture
def no_wait(monkeypatch):
    """Chunks go over TLS at once when there is no lane."""
    monkeypatch.setattr(module, "LANE_WAIT_S", 0.02)


class MadeLane:
    """A lane as the peer sees it."""

    def __init__(self, peer):
        self.peer = peer
        self.gone = asyncio.Event()
        self.sent = asyncio.Queue()
        self.is_full = False
        self.path_is_full = False
        self.works = True
        self.came_bytes = 0
        self.taken = asyncio.Event()
        self.taken.set()

    async def ready(self):
        await self.taken.wait()

    async def send(self, name, sealed):
        self.sent.put_nowait((name, sealed))
        return self.works

    def close(self):
        if not self.gone.is_set():
            self.gone.set()
            self.peer.lane_down(self)


async def test_messages_come_through_in_order(wire):
    wire.say(*(Ping(number) for number in range(20)))
    assert [await wire.owner.messages.get() for _ in range(20)] == [Ping(number) for number in range(20)]
    for number in range(20):
        wire.peer.send(Pong(number))
    assert [await wire.hear() for _ in range(20)] == [Pong(number) for number in range(20)]


@pytest.mark.parametrize("said", [b"\0\0\0\0", b"\xff\xff\xff\xff", encode_frame(b"\xc1"), encode_frame(b"\x91\x63")])
async def test_bytes_that_are_no_message_cost_the_link(wire, said):
    wire.writer.write(said)
    await wire.ended()
    assert await wire.hear() is None


@pytest.mark.parametrize("fault", [MessageError("a rule"), KeyError("a mistake of ours"), OSError("a broken disk")])
async def test_whatever_a_message_brings_about_costs_this_link_and_nothing_else(wire, fault):
    wire.owner.fault = fault
    wire.say(Ping(1))
    await wire.ended()  # and raises nothing: the task group of the fleet goes on


async def test_what_has_come_over_lanes_counts_also_when_they_are_gone(wire):
    one, two = MadeLane(wire.peer), MadeLane(wire.peer)
    for lane, came_bytes in ((one, 1000), (two, 500)):
        wire.peer.lane_up(lane)
        lane.came_bytes = came_bytes
    assert wire.peer.came_bytes == 1500
    one.close()
    two.came_bytes += 1
    assert wire.peer.came_bytes == 1501


async def test_who_says_too_much_is_heard_more_slowly(wire, monkeypatch):
    monkeypatch.setattr(allowance, "BURST", 10 * allowance.PING)
    monkeypatch.setattr(allowance, "RATE", 100 * allowance.PING)
    wire.peer._allowance = allowance.Allowance(time.monotonic())
    began_s = time.monotonic()
    wire.say(*(Ping(number) for number in range(40)))
    assert [await wire.owner.messages.get() for _ in range(40)] == [Ping(number) for number in range(40)]
    assert time.monotonic() - began_s > 0.25, "ten at once and a hundred a second"


async def test_a_peer_that_reads_nothing_is_dropped_and_not_fed(wire, monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 300_000)
    count = 0
    while not wire.peer._closed:
        wire.peer.send(Reject(count, Reason.BUSY, (bytes(32),) * 16))
        count += 1
        assert count < 10_000
    await wire.ended()


async def test_a_link_that_is_closed_takes_messages_and_does_nothing(wire):
    wire.peer.close()
    await wire.ended()
    wire.peer.send(Ping(1))
    wire.peer.serve(0, NAME, secure=True)
    wire.peer.close()


# -- chunks over the control connection ----------------------------------------------------------------------


async def pieces(wire, request):
    body = bytearray()
    while True:
        piece = await wire.hear()
        assert (piece.request, piece.offset, piece.size) == (request, len(body), len(CHUNK))
        body += piece.data
        if len(body) == piece.size:
            return bytes(body)


async def test_a_chunk_asked_for_over_tls_comes_in_pieces(wire):
    wire.peer.serve(7, NAME, secure=True)
    assert await pieces(wire, 7) == CHUNK
    assert wire.owner.left == [NAME]


async def test_without_lanes_chunks_go_over_tls(wire, no_wait):
    wire.peer.serve(7, NAME, secure=False)
    assert await pieces(wire, 7) == CHUNK


async def test_a_chunk_that_is_gone_is_rejected_as_missing(wire):
    wire.peer.serve(3, bytes(32), secure=True)
    assert await wire.hear() == Reject(3, Reason.MISSING)
    assert wire.owner.left == [bytes(32)]


async def test_more_requests_than_the_queue_holds_are_rejected_as_busy(wire, monkeypatch):
    full = asyncio.Queue(1)
    full.put_nowait((0, NAME))
    wire.peer._over_lanes = full
    wire.peer.serve(9, NAME, secure=False)
    assert await wire.hear() == Reject(9, Reason.BUSY)
    assert wire.owner.left == [NAME]


def in_pieces(request, data=CHUNK):
    return [Piece(request, at, len(data), data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]


async def test_pieces_make_up_a_chunk_that_was_asked_for(wire):
    wire.owner.flights[4] = NAME, len(CHUNK)
    wire.say(*in_pieces(4))
    assert await wire.owner.came.get() == (None, NAME, CHUNK)


async def test_pieces_of_what_was_not_asked_for_are_ignored(wire):
    wire.say(*in_pieces(4), Ping(1))
    assert await wire.owner.messages.get() == Ping(1)
    assert wire.owner.came.empty()
    assert not wire.peer._pieces


@pytest.mark.parametrize(
    "wrong",
    [
        lambda first, second: [second],
        lambda first, second: [first, first],
        lambda first, second: [Piece(4, 0, len(CHUNK) + 1, first.data)],
    ],
)
async def test_pieces_that_do_not_follow_each_other_cost_the_link(wire, wrong):
    wire.owner.flights[4] = NAME, len(CHUNK)
    wire.say(*wrong(*in_pieces(4)[:2]))
    await wire.ended()
    assert wire.owner.came.empty()


async def test_half_a_chunk_is_not_kept_once_its_request_is_closed(wire):
    for request in range(20):
        wire.owner.flights = {request: (NAME, len(CHUNK))}
        wire.say(in_pieces(request)[0], Ping(request))
        assert await wire.owner.messages.get() == Ping(request)
    assert len(wire.peer._pieces) == 1


# -- lanes ---------------------------------------------------------------------------------------------------


async def test_with_a_lane_chunks_go_over_it(wire):
    lane = MadeLane(wire.peer)
    wire.peer.lane_up(lane)
    wire.peer.serve(1, NAME, secure=False)
    assert await lane.sent.get() == (NAME, CHUNK)
    assert wire.heard == []
    lane.close()


async def test_a_chunk_that_has_not_begun_to_leave_can_be_withdrawn(wire):
    lane = MadeLane(wire.peer)
    lane.taken.clear()
    wire.peer.lane_up(lane)
    for request in range(3):
        wire.peer.serve(request, NAME, secure=False)
    wire.peer.withdraw(1)
    wire.peer.withdraw(7)
    assert await wire.hear() == Reject(1, Reason.BUSY)
    assert wire.owner.left == [NAME]
    lane.taken.set()
    for _ in range(2):
        await lane.sent.get()
    await asyncio.sleep(0.01)
    assert lane.sent.empty()
    assert wire.heard == []
    lane.close()


async def test_a_number_that_is_queued_is_not_queued_again(wire):
    wire.peer.serve(1, NAME, secure=False)
    wire.peer.serve(1, NAME, secure=False)
    assert await wire.hear() == Reject(1, Reason.BUSY)
    assert wire.owner.left == [NAME]


async def test_what_a_broken_lane_may_have_swallowed_is_rejected(wire):
    lane = MadeLane(wire.peer)
    wire.peer.lane_up(lane)
    for request in range(3):
        wire.peer.serve(request, NAME, secure=False)
        await lane.sent.get()
    lane.close()
    assert [await wire.hear() for _ in range(3)] == [Reject(request, Reason.BUSY) for request in range(3)]
    assert wire.owner.left == [NAME] * 3


async def test_a_lane_that_opens_when_its_peer_has_gone_is_closed(wire):
    wire.peer.close()
    await wire.ended()
    lane = MadeLane(wire.peer)
    wire.peer.lane_up(lane)
    assert lane.gone.is_set()
    assert wire.peer.lanes == []


async def test_a_lane_that_opens_while_its_peer_is_going_is_closed(wire):
    """The task group is ending already: a task begun in it would end the daemon."""
    lane = MadeLane(wire.peer)
    wire.peer._tasks._aborting = True
    wire.peer.lane_up(lane)
    wire.peer._tasks._aborting = False
    assert lane.gone.is_set()
    assert wire.peer.lanes == []


async def test_a_link_whose_lanes_broke_is_offered_another(monkeypatch):
    monkeypatch.setattr(module, "GROWTH_S", 0.01)
    monkeypatch.setattr(module, "LANE_RETRY_S", 0.02)
    wire = await Wire(None).open()
    async with asyncio.timeout(10):
        assert await wire.owner.offers.get() is wire.peer
    await wire.close()


async def test_the_side_that_dialled_asks_for_lanes_where_the_other_offers_them(monkeypatch):
    monkeypatch.setattr(module, "GROWTH_S", 0.01)
    wire = await Wire("host:1").open()
    lane = MadeLane(wire.peer)
    lane.is_full = lane.path_is_full = True
    held = asyncio.Event()

    async def stuck():
        wire.peer.upload.add(10**9, module.time.monotonic())
        await held.wait()

    lane.ready = stuck
    wire.peer.lane_up(lane)
    for request in range(3):
        wire.peer.serve(request, NAME, secure=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await wire.hear()
    lane.path_is_full = False  # more lanes would only take from this one before
    assert await wire.hear() == Widen()
    held.set()
    await wire.close()


async def test_lane_messages_are_the_fleets_business(wire):
    offer = Lane(bytes(16), bytes(32))
    wire.say(offer, Lossy(), Widen())
    assert await wire.owner.messages.get() == offer
    assert await wire.owner.offers.get() is wire.peer
    assert wire.owner.lossy == [wire.peer]
