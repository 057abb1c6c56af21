"""Allowance: how many messages of one peer are worth hearing. Whoever says more is heard more slowly.

Each message has a price, paid out of an allowance that fills up again at a steady rate. While it is overdrawn nothing
more is read from the peer, so that its words pile up in its own kernel, and cost nobody but itself. What is useful is
free: requests that are answered by a chunk, and pieces of chunks that were asked for; a reject is dear.
"""

from __future__ import annotations

from typing import Final

from .messages import BlockPiece, BlockReject, BlockRequest, Buckets, Claim, Have, Message, Piece, Ping, Reject, Request

RATE: Final = 2000.0
"""Allowance per second, in the price of one word."""

BURST: Final = 8000.0
"""What has gathered at most: a newcomer is told of every node and every version at once."""

REFUSAL: Final = 20.0
"""Price of a request that is rejected. Honest ones meet a busy peer now and then, and have the chunk from another."""

PING: Final = 20.0
"""Price of a ping, which is answered: one per second is what honest peers need."""

BUCKETS: Final = 200.0
"""Price of sums, which are answered by the names in every bucket that differs. Honest peers send them once a second."""

RANGES: Final = 16
"""Ranges of a HAVE or CLAIM that cost as much as one word more."""

_FREE: Final = (Request, BlockRequest, Piece, BlockPiece)


class Allowance:
    """What one connection may say. Times are seconds of the caller's clock."""

    def __init__(self, now_s: float) -> None:
        self._level = BURST
        self._at_s = now_s

    def heard(self, message: Message, now_s: float) -> None:
        """Pay for a message that came."""
        if isinstance(message, Buckets):
            self._pay(BUCKETS, now_s)
        elif isinstance(message, Have | Claim):
            self._pay(1.0 + len(message.ranges) // RANGES, now_s)
        elif not isinstance(message, _FREE):
            self._pay(PING if isinstance(message, Ping) else 1.0, now_s)

    def answered(self, message: Message, now_s: float) -> None:
        """Pay for what was asked for in vain, when it is answered."""
        if isinstance(message, Reject | BlockReject):
            self._pay(REFUSAL, now_s)

    def unasked(self, now_s: float) -> None:
        """Pay for bytes that nobody had asked for."""
        self._pay(1.0, now_s)

    def wait_s(self, now_s: float) -> float:
        """How long to hear nothing from the peer, 0.0 while it has not said too much."""
        return max(0.0, -self._filled(now_s) / RATE)

    def _pay(self, price: float, now_s: float) -> None:
        self._level = self._filled(now_s) - price
        self._at_s = now_s

    def _filled(self, now_s: float) -> float:
        return min(BURST, self._level + (now_s - self._at_s) * RATE)
