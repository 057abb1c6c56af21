"""Flows: what each TCP connection of the lab carried, seen from the outside, and which kind of connection it is.

Counted is the stream, not the packets: bytes that TCP sent again are counted once. That tells what a program sent
apart from what the path made of it, and works for every program alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_KEY: Final = slice(12, 24)  # addresses and ports: RFC 791 and RFC 9293 without IP options
_TCP: Final = 6
_SYN: Final = 2
_WINDOW: Final = 1 << 31
_FIRST_BYTES: Final = 8

LANE_MAGIC: Final = b"PSLANE1\n"


@dataclass(slots=True)
class Flow:
    """One direction of one connection."""

    begin: int
    """Sequence number of the first byte."""
    size: int = 0
    """Stream bytes so far."""
    first: bytes = b""


class Flows:
    """Follows every TCP packet that enters the network."""

    def __init__(self) -> None:
        self._flows: dict[bytes, Flow] = {}

    def see(self, packet: bytes) -> None:
        """Count a packet."""
        if packet[9] != _TCP:
            return
        sequence = int.from_bytes(packet[24:28], "big")
        key = packet[_KEY]
        flow = self._flows.get(key)
        if packet[33] & _SYN:
            # A connection may take the ports of an earlier one: it begins anew, what was counted stays.
            self._flows[key] = Flow((sequence + 1 - (flow.size if flow else 0)) & 0xFFFFFFFF, flow.size if flow else 0)
            return
        if flow is None:
            return
        payload = 20 + (packet[32] >> 4) * 4
        size = len(packet) - payload
        if size <= 0:
            return
        end = (sequence + size - flow.begin) & 0xFFFFFFFF
        if end > flow.size and end - flow.size < _WINDOW:
            if len(flow.first) < _FIRST_BYTES:
                flow.first += packet[payload : payload + _FIRST_BYTES - len(flow.first)]
            flow.size = end

    def totals(self) -> list[tuple[str, str, str, int]]:
        """(source address, destination address, kind, stream bytes) summed over connections.

        The kind is "lane" for plain data connections of patchswarm, "tls" for its control connections, or "other".
        """
        sums: dict[tuple[str, str, str], int] = {}
        for key, flow in self._flows.items():
            reverse = self._flows.get(key[4:8] + key[:4] + key[10:12] + key[8:10])
            kind = _kind(flow.first) or _kind(reverse.first if reverse else b"") or "other"
            source, target = _address(key[:4]), _address(key[4:8])
            sums[source, target, kind] = sums.get((source, target, kind), 0) + flow.size
        return [(*key, size) for key, size in sums.items()]


def _kind(first: bytes) -> str:
    if first == LANE_MAGIC:
        return "lane"
    return "tls" if first[:2] == b"\x16\x03" else ""


def _address(packed: bytes) -> str:
    return ".".join(map(str, packed))
