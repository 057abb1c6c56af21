"""Leaving: a node that stops turns away who waits for it, finishes the chunks that it is sending, and says goodbye.

Whoever was turned away asks elsewhere at once, and nobody fetches again what was nearly there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from ...protocol.messages import Bye
from .peer import Peer

LEAVE_S: Final = 2.0
"""How long a peer has to take what is being sent to it: after that it is asked for again, elsewhere."""


async def leave(peers: Iterable[Peer]) -> None:
    """Part from all of these peers; returns when every one of them is closed."""
    async with asyncio.TaskGroup() as tasks:
        for peer in peers:
            tasks.create_task(_part(peer))


async def _part(peer: Peer) -> None:
    peer.turn_away()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await peer.finish()
        peer.send(Bye("stopping"))
        await peer.flush()
    finally:
        peer.close()
