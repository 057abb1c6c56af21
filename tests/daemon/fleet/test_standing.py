"""Standing: certificates renew by themselves over the link to whoever issues; nobody else's word is taken for one."""

import datetime as dt

from daemon.nodes import UTC_NOW, free_port, make_head
from daemon.single import Single, head_of, member_of, until

from patchswarm.daemon.fleet import authority, standing
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.daemon.fleet.record import remembered
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.members import Members, verify_membership
from patchswarm.protocol.messages import ObjectKind, Renewed
from patchswarm.protocol.signed import peek

DAYS = dt.timedelta(days=1)


def days_left(home):
    return (Identity.load(home).not_after - dt.datetime.now(dt.UTC)) / DAYS


async def test_an_old_certificate_is_renewed_over_the_link_and_shown_from_then_on(root):
    async with head_of(root) as head, member_of(head, root, enrolled=UTC_NOW - 60 * DAYS) as member:
        assert days_left(member.home) < 31
        await until(lambda: days_left(member.home) > 89)
        name = member.identity.node_id

        def renewed_everywhere():
            record = head.fleet.swarm.gossip.nodes[name]
            ends = verify_membership(record.membership, head.identity.ca_public_key).not_after
            return ends > (UTC_NOW + 89 * DAYS).timestamp()

        await until(renewed_everywhere)
        assert list(member.fleet.standing.problems()) == []


async def test_a_young_certificate_is_left_alone(root):
    async with head_of(root) as head, member_of(head, root) as member:
        before = (member.home.keys / "node.crt").read_bytes()
        await until(lambda: list(member.fleet.swarm.connected()))
        await member.fleet.standing._renew(UTC_NOW)
        assert member.fleet.standing._life(dt.datetime.now(dt.UTC)) < standing.RENEW_AT
        assert (member.home.keys / "node.crt").read_bytes() == before


async def test_the_head_renews_itself(root):
    made = make_head(root / "h", now=UTC_NOW - 60 * DAYS)
    config_text = made.home.config.read_text()
    async with Single(made.home, made.config).running():
        await until(lambda: days_left(made.home) > 89)
    assert made.home.config.read_text() == config_text


async def test_while_nobody_renews_the_node_goes_on_and_says_so(root):
    async with head_of(root) as head:
        pass
    async with member_of(head, root, enrolled=UTC_NOW - 70 * DAYS) as member:
        (problem,) = member.fleet.standing.problems()
        assert "ends in 20.0 days and nobody renews it" in problem


async def test_a_certificate_for_another_key_or_by_another_ca_is_not_taken(root):
    async with head_of(root) as head, member_of(head, root, enrolled=UTC_NOW - 60 * DAYS) as member:
        await until(lambda: days_left(member.home) > 89)  # so that the head sends no more
        before = (member.home.keys / "node.crt").read_bytes()
        stranger = make_head(root / "stranger").identity
        far = dt.timedelta(days=300)
        mine = member.identity.node_public_key
        for issuing, key in ((head.identity.issuing, head.identity.node_public_key), (stranger.issuing, mine)):
            certificates, membership = issuing.issue(key, UTC_NOW, far)
            await member.fleet.standing.renewed(Renewed(authority.to_der(certificates), membership))
        await member.fleet.standing.renewed(Renewed(b"\x30\x82\x00\x01", member.identity.membership))
        assert (member.home.keys / "node.crt").read_bytes() == before


async def test_an_issuer_gives_one_node_one_certificate_at_a_time(root):
    async with head_of(root) as head, member_of(head, root) as member:
        await until(lambda: list(head.fleet.swarm.connected()))
        told = []
        head.fleet.standing._tell = lambda number, message: told.append(message)
        (link,) = head.fleet.swarm.connected()
        head.fleet.standing.asked(link.number)
        head.fleet.standing.asked(link.number)
        assert len(told) == 1
        member.fleet.standing.asked(next(iter(member.fleet.swarm.links)))  # holds no issuing key: says nothing


async def test_a_record_is_dated_by_its_serial(root):
    async with head_of(root) as head:
        record = peek(head.fleet._record.sign(), NodeRecord)
        assert abs((record.serial >> 24) - dt.datetime.now(dt.UTC).timestamp()) < 60


async def test_a_node_that_was_away_for_days_finds_the_others_where_it_left_them(root, monkeypatch):
    """All it knew is out of date by then, and its only seed is gone: it still knows where others were."""
    async with head_of(root) as head:
        other_address = f"127.0.0.1:{free_port()}"
        async with (
            member_of(head, root, "other", listen=other_address) as other,
            member_of(head, root, "away") as away,
        ):
            await until(lambda: other.fleet.node in away.fleet.swarm.gossip.nodes)
            await until(lambda: any(kind is ObjectKind.NODE for kind, _, _ in away.catalog.objects()))
            await until(lambda: other_address in remembered(away.catalog))
            await away.stop()
            await head.stop()
            monkeypatch.setattr(Members, "is_gone", lambda self, record: self.unix_s and record.serial < later)
            later = other.fleet.swarm.gossip.nodes[other.fleet.node].serial + 1
            other.fleet._say_record()
            async with Single(away.home, away.config).running() as again:
                await until(lambda: any(link.node == other.fleet.node for link in again.fleet.swarm.connected()))
