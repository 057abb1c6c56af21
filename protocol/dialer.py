"""Dialer: which addresses to dial, and when again after a failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from .backoff import doubled
from .chance import Chance
from .manifest import NodeRecord

FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 15.0
HEAD_START_S: Final = 2.0
DIALS_PER_TURN: Final = 16
ENOUGH: Final = 3
"""Links with which a node needs its seeds no more."""


@dataclass(slots=True)
class _Try:
    failures: int = 0
    next_s: float = 0.0
    dialling: bool = False  # from the dial to the end of the connection it made
    node: bytes = b""  # who answered there last


class Dialer:
    """Keeps a node connected: to its seeds until it has others, then to those it wants to be linked to."""

    def __init__(self, seeds: Iterable[str], chance: Chance) -> None:
        self._seeds = tuple(seeds)
        self._chance = chance
        self._tries: dict[str, _Try] = {}
        self._has_looked = False

    def due(
        self,
        nodes: Mapping[bytes, NodeRecord],
        me: bytes,
        wanted: AbstractSet[bytes],
        connected: AbstractSet[bytes],
        now_s: float,
    ) -> list[str]:
        """Addresses to dial now.

        Of two nodes that can dial each other the one with the smaller id does so at once and the other waits a
        little, so that they seldom meet in the middle. At the first call nobody is waited for: a node that has come
        back knows others, and they do not know yet that it is there. Of a node's addresses one is tried at a time.
        """
        has_just_begun, self._has_looked = not self._has_looked, True
        known: dict[str, bytes] = {}
        for node in wanted:
            for address in nodes[node].addresses if node in nodes else ():
                # Who is connected may claim an address that is another's.
                if address not in known or known[address] in connected:
                    known[address] = node
        mine = nodes[me].addresses if me in nodes else ()
        candidates = dict.fromkeys(self._seeds if len(connected) < ENOUGH else (), b"") | known
        for address in [address for address, attempt in self._tries.items() if not attempt.dialling]:
            if address not in known and address not in self._seeds:
                del self._tries[address]
        dialling = {known.get(address) or attempt.node for address, attempt in self._tries.items() if attempt.dialling}
        due: list[str] = []
        for address, owner in candidates.items():
            node = owner or self._node_at(address)
            if node in connected or (node and node in dialling) or address in mine:
                continue
            attempt = self._tries.get(address)
            if attempt is None:
                is_left_to_it = bool(node and mine and node < me) and not has_just_begun
                wait_s = HEAD_START_S if is_left_to_it else 0.0
                attempt = self._tries[address] = _Try(next_s=now_s + wait_s)
            if not attempt.dialling and attempt.next_s <= now_s and len(due) < DIALS_PER_TURN:
                attempt.dialling = True
                dialling.add(node)
                due.append(address)
        return due

    def failed(self, address: str, now_s: float) -> None:
        """The dial failed, or the connection it made ended: wait, longer each time, with jitter."""
        attempt = self._tries.setdefault(address, _Try())
        wait_s = doubled(FIRST_RETRY_S, attempt.failures, LAST_RETRY_S)
        attempt.failures += 1
        attempt.dialling = False
        attempt.next_s = now_s + wait_s * self._chance.uniform(0.5, 1.0)

    def worked(self, address: str, node: bytes) -> None:
        """The dial led to a member that said hello."""
        attempt = self._tries.setdefault(address, _Try())
        attempt.failures = 0
        attempt.node = node

    def reachable(self, addresses: Iterable[str], now_s: float) -> None:
        """One of the same site was reached: those that failed are tried again now, for a path may have healed."""
        for address in addresses:
            attempt = self._tries.get(address)
            if attempt is not None and attempt.failures and not attempt.dialling:
                attempt.next_s = min(attempt.next_s, now_s)

    def _node_at(self, address: str) -> bytes:
        attempt = self._tries.get(address)
        return attempt.node if attempt else b""
