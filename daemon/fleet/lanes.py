"""Lane desk: offers lanes to those who dialled us, dials those that are offered, and checks who comes with what."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from ...protocol.errors import FrameError
from ...protocol.lane import LaneCodec, check_preamble, encode_preamble, preamble_lane
from ...protocol.messages import Lane as LaneOffer
from .lane import Lane
from .peer import Peer

_log: Final = structlog.get_logger(__name__)

DIAL_TIMEOUT_S: Final = 10.0
OFFER_S: Final = 30.0

LOOK_S: Final = 0.1
"""How often it is looked how what was sent fares: a round trip between continents."""

FIRST_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""Receive buffer that a lane begins with, as far as tcp_rmem allows.

The kernel begins with 128 KiB and doubles that every few round trips, which holds slow start up. SO_RCVBUF would set it
for good; SO_RCVLOWAT widens it so far at least, and Linux goes on from there (tcp_set_rcvlowat in net/ipv4/tcp.c).
"""

_KEEP_ALIVE: Final = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 20_000,
}
"""Lanes idle between versions, for longer than many a NAT remembers them: keep them alive, and notice when they died.

Seconds, but for the last: milliseconds in which sent bytes must be acknowledged.
"""


class LaneDesk:
    """Lanes of all peers, at most `limit` each. `make(peer, codec)` makes the protocol object of one lane."""

    def __init__(self, limit: int, make: Callable[[Peer, LaneCodec], Lane]) -> None:
        self._limit = limit
        self._make = make
        self._dialling: Counter[Peer] = Counter()
        self._offers: dict[bytes, tuple[Peer, bytes, float]] = {}

    def offer(self, peer: Peer) -> None:
        """Offer one more lane to a peer that dialled us: only its side is known to get through."""
        self._expire()
        pending = sum(offered is peer for offered, _, _ in self._offers.values())
        if peer.address is not None or len(peer.lanes) + pending >= self._limit:
            return
        lane, key = secrets.token_bytes(16), secrets.token_bytes(32)
        self._offers[lane] = (peer, key, time.monotonic() + OFFER_S)
        peer.send(LaneOffer(lane, key))

    async def dial(self, peer: Peer, offer: LaneOffer) -> None:
        """Dial a lane that a peer, which we dialled, has offered."""
        assert peer.address is not None
        if len(peer.lanes) >= self._limit:
            return
        if len(peer.lanes) + self._dialling[peer] >= self._limit:
            return
        self._dialling[peer] += 1
        try:
            host, port = peer.remote
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                transport, lane = await asyncio.get_running_loop().create_connection(
                    lambda: self._make(peer, LaneCodec(offer.key, dialler=True)), host, port
                )
        except (OSError, TimeoutError) as error:
            _log.info("no lane", address=peer.address, reason=str(error) or type(error).__name__)
            return
        finally:
            self._dialling[peer] -= 1
            if not self._dialling[peer]:
                del self._dialling[peer]
        _tune(transport.get_extra_info("socket"), peer)
        transport.write(encode_preamble(offer.lane, offer.key))
        peer.lane_up(lane)

    async def accept(self, connection: socket.socket, preamble: bytes) -> None:
        """Take a connection that says it is a lane we offered, and close any other."""
        try:
            peer, key = self._claim(preamble)
        except FrameError as error:
            _log.warning("lane refused", reason=str(error))
            connection.close()
            return
        _tune(connection, peer)
        _, lane = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._make(peer, LaneCodec(key, dialler=False)), connection
        )
        peer.lane_up(lane)

    def _claim(self, preamble: bytes) -> tuple[Peer, bytes]:
        """The offer that a preamble answers, which ends with it. Raises FrameError."""
        self._expire()
        offered = self._offers.get(preamble_lane(preamble))
        if offered is None:
            raise FrameError("a lane that was not offered")
        peer, key, _ = offered
        check_preamble(preamble, key)
        del self._offers[preamble_lane(preamble)]
        return peer, key

    def _expire(self) -> None:
        now_s = time.monotonic()
        for lane in [lane for lane, (_, _, until_s) in self._offers.items() if until_s <= now_s]:
            del self._offers[lane]


class LaneWatch:
    """Looks at all lanes of `lanes()`, ten times a second while anything leaves over them."""

    def __init__(self, lanes: Callable[[], Iterable[Lane]]) -> None:
        self._lanes = lanes
        self._sent = asyncio.Event()

    def sent(self) -> None:
        """Note that something was given to a lane."""
        self._sent.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._sent.wait()
            self._sent.clear()
            sending = True
            while sending:
                await asyncio.sleep(LOOK_S)
                sending = sum(lane.watch() for lane in self._lanes()) > 0


def _tune(connection: socket.socket, peer: Peer) -> None:
    """Set the congestion control that the path to the peer calls for, a buffer for long paths, and keep alive."""
    peer.congestion.choose(connection)
    with contextlib.suppress(OSError, AttributeError):
        for low_water in (FIRST_BUFFER_BYTES, 1):  # the buffer stays as large as the first one makes it
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
