"""Standing: whether this node is still a member. Renews its certificate, and those of others where it may.

Once 3/5 of its life are over a node asks every peer for a new certificate, until one that issues answers: the head, or
whoever holds an issuing key. While none can be reached the node goes on as it is, and says so; at its end it is out.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from ...protocol.ids import short
from ...protocol.members import REFRESH_S
from ...protocol.messages import Message, Renew, Renewed
from ...protocol.swarm import Swarm
from ..errors import DaemonError
from . import authority, identity, tls
from .enrol import check_issued
from .identity import Identity
from .record import OwnRecord

_log: Final = structlog.get_logger(__name__)

TURN_S: Final = 1.0
RENEW_AT: Final = 0.6
"""Part of a certificate's life after which it is renewed; from ALARM_AT on its age is a problem."""

ALARM_AT: Final = 0.7
ASK_EVERY_S: Final = 30.0
ISSUE_EVERY_S: Final = 10.0
"""How often one peer gets a certificate."""

Tell = Callable[[int, Message], None]
"""Sends a message on the link with this number."""


class Standing:
    """The node's own membership.

    `say_record` signs the node's record again; `contexts` are those that show its certificate.
    """

    def __init__(
        self,
        own: Identity,
        swarm: Swarm,
        record: OwnRecord,
        contexts: Sequence[ssl.SSLContext],
        tell: Tell,
        say_record: Callable[[], None],
    ) -> None:
        self._own = own
        self._swarm = swarm
        self._record = record
        self._contexts = contexts
        self._tell = tell
        self._say_record = say_record
        self._certificate = own.certificate
        self._asked_s = 0.0
        self._issued: dict[bytes, float] = {}  # node -> when it last got a certificate
        self._rivals: set[bytes] = set()
        self.said_s = 0.0
        """When the record was last said."""

        self.is_copied = False
        """Whether another daemon runs with this node's keys: neither may publish, for they would contradict."""

    async def run(self) -> None:
        """Look after all of this until cancelled."""
        while True:
            now = dt.datetime.now(dt.UTC)
            self._swarm.tell_time(int(now.timestamp()), time.monotonic())
            if time.monotonic() - self.said_s > REFRESH_S:
                self._say_record()
            if self._life(now) >= RENEW_AT:
                try:
                    await self._renew(now)
                except DaemonError as error:
                    _log.error("certificate not renewed", reason=str(error))
            await asyncio.sleep(TURN_S)

    def problems(self) -> Iterable[str]:
        """What is wrong with this node's membership, one line each."""
        now = dt.datetime.now(dt.UTC)
        if self._swarm.gossip.members.is_revoked(self._swarm.node):
            yield "this node was revoked: no other talks to it; make a new home and join again to come back"
        if self.is_copied:
            yield (
                "another daemon runs with this node's keys, from a copy of its home: neither publishes; stop one, "
                "delete its home, and restart the other"
            )
        elif self._rivals:
            yield (
                "this home is older than what the fleet knew of its node: it was restored from a backup, or its clock "
                "went back; what it signed since then it does not know"
            )
        left = self._certificate.not_valid_after_utc - now
        if left <= dt.timedelta(0):
            yield "this node's certificate has expired: make a new home and join again"
        elif self._life(now) >= ALARM_AT:
            yield (
                f"this node's certificate ends in {left.total_seconds() / 86400:.1f} days and nobody renews it: "
                "let it reach the head, or another node with an issuing key"
            )
        issuing = self._own.issuing
        if issuing is not None and issuing.record and issuing.not_after - now < authority.NODE_VALIDITY:
            yield (
                f"the issuing key ends on {issuing.not_after:%Y-%m-%d}, and with it what it issues: "
                "run 'patchswarm issuer --ca-dir DIR' on the head"
            )

    @property
    def ends_at(self) -> float:
        """Unix time at which the certificate ends."""
        return self._certificate.not_valid_after_utc.timestamp()

    def _life(self, now: dt.datetime) -> float:
        """Part of the certificate's life that is over."""
        begin, end = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc
        return (now - begin) / (end - begin)

    def rival(self, incarnation: bytes, serial: int) -> None:
        """Take note that another life of this node was heard, later than this one.

        It may be over, and all that is left of it what it said: then it does not answer when it is outdone.
        """
        if self.is_copied:
            return
        if incarnation in self._rivals:
            self.is_copied = True
            _log.error("another daemon runs with the keys of this node: neither publishes")
        else:
            _log.warning("the fleet knows a later life of this node: was its home restored, or copied?")
        self._rivals.add(incarnation)
        self._record.outdo(serial)
        self._say_record()

    # -- ours -----------------------------------------------------------------------------------------------

    async def _renew(self, now: dt.datetime) -> None:
        if self._own.issuing is not None:
            certificates, membership = self._own.issuing.issue(self._own.node_public_key, now)
            if certificates[0].not_valid_after_utc > self._certificate.not_valid_after_utc + dt.timedelta(hours=1):
                await self._take(certificates, membership)
            return
        if time.monotonic() - self._asked_s < ASK_EVERY_S and self._asked_s:
            return
        peers = list(self._swarm.connected())
        for link in peers:
            self._asked_s = time.monotonic()
            self._tell(link.number, Renew())

    async def renewed(self, message: Renewed) -> None:
        """Take a new certificate that a peer sent, if it is one and lasts longer than what is held."""
        own = self._own
        try:
            certificates = check_issued(
                message.certificate, message.membership, own.node_public_key, own.ca_certificate
            )
            if certificates[0].not_valid_after_utc > self._certificate.not_valid_after_utc:
                await self._take(certificates, message.membership)
        except DaemonError as error:
            _log.warning("certificate not renewed", reason=str(error))

    async def _take(self, certificates: list[x509.Certificate], membership: bytes) -> None:
        keys: Path = self._own.keys
        await asyncio.to_thread(identity.write_membership, keys, certificates, membership)
        self._certificate = certificates[0]
        self._record.membership = membership
        for context in self._contexts:
            tls.show(context, keys / identity.NODE_CERTIFICATE, keys / identity.NODE_KEY)
        _log.info("certificate renewed", until=f"{self._certificate.not_valid_after_utc:%Y-%m-%d}")
        self._say_record()

    # -- others' --------------------------------------------------------------------------------------------

    def asked(self, number: int) -> None:
        """Issue a new certificate to the member on this link, if this node can."""
        link, now_s = self._swarm.links.get(number), time.monotonic()
        if link is None or link.record is None or self._own.issuing is None:
            return
        self._issued = {node: at for node, at in self._issued.items() if now_s - at < ISSUE_EVERY_S}
        if link.node in self._issued or not self._swarm.gossip.is_member(link.node):
            return
        self._issued[link.node] = now_s
        certificates, membership = self._own.issuing.issue(link.node_key, dt.datetime.now(dt.UTC))
        _log.info("certificate issued again", node=short(link.node))
        self._tell(number, Renewed(authority.to_der(certificates), membership))
