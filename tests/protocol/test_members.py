"""Members: whose word lets a node in, until when, and how somebody is put out for ever."""

import pytest
from support.versions import key_of, node_record, raw

from patchswarm.protocol.effects import Hangup, Send
from patchswarm.protocol.errors import MessageError, SignatureError
from patchswarm.protocol.gossip import Gossip
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import SERIAL_BITS, IssuedMembership, Issuer, Membership, Revocation
from patchswarm.protocol.members import FUTURE_S, GONE_S, LIVELY_S, verify_membership
from patchswarm.protocol.messages import Bye, Hello, Object, ObjectKind
from patchswarm.protocol.signed import sign
from patchswarm.protocol.swarm import Settings, Swarm

CA, ISSUER, NODE, OTHER = key_of("ca"), key_of("issuer"), key_of("node"), key_of("other")
NODE_ID = digest(raw(NODE))
NOW = 1_800_000_000


def lent(until=NOW + 100, *, issuer_until=NOW + 200, signer=CA, by=ISSUER, node=NODE):
    """A membership by an issuing key."""
    record = sign(Issuer(raw(ISSUER), issuer_until), signer)
    return sign(IssuedMembership(raw(node), until, record), by)


def revocation(key, *, signer=CA, issuer=b""):
    return ObjectKind.REVOCATION, sign(Revocation(digest(raw(key)), NOW, issuer), signer)


def record(key=NODE, *, said=NOW, until=NOW + 100, member=None):
    serial = (said << SERIAL_BITS) + 1
    member = sign(Membership(raw(key), until), CA) if member is None else member
    return ObjectKind.NODE, node_record(CA, key, serial=serial, member=member)


@pytest.fixture
def gossip():
    made = Gossip(raw(CA))
    made.tell_time(NOW)
    return made


# -- whose word counts ---------------------------------------------------------------------------------------


def test_an_issuing_key_speaks_for_the_ca():
    member = verify_membership(lent(), raw(CA))
    assert (member.node_key, member.not_after, member.issuer) == (raw(NODE), NOW + 100, raw(ISSUER))


@pytest.mark.parametrize(
    "forged",
    [
        lent(signer=OTHER),
        lent(by=OTHER),
        lent(NOW + 201),
        sign(Membership(raw(NODE), NOW + 100), ISSUER),
        sign(IssuedMembership(raw(NODE), NOW, b""), CA),
    ],
    ids=["issuer not by the CA", "not by the issuer", "outlives its issuer", "issuer not named", "no issuer"],
)
def test_a_membership_that_no_one_entitled_signed_is_refused(forged):
    with pytest.raises((SignatureError, MessageError)):
        verify_membership(forged, raw(CA))


# -- ends ----------------------------------------------------------------------------------------------------


def test_an_expired_membership_is_not_taken_and_one_that_expires_is_dropped(gossip):
    assert gossip.learn(*record(until=NOW)) is None
    assert gossip.learn(*record(until=NOW + 5)) is not None
    gossip.tell_time(NOW + 5)
    assert gossip.nodes == {}
    assert not gossip.is_member(NODE_ID)
    assert gossip.learn(*record(until=NOW + 5)) is None


def test_a_silent_node_leaves_rosters_then_gossip(gossip):
    gossip.learn(*record(until=NOW + 10 * GONE_S))
    assert list(gossip.lively()) == [NODE_ID]
    gossip.tell_time(NOW + LIVELY_S)
    assert gossip.lively() == {}
    assert list(gossip.nodes) == [NODE_ID]
    gossip.tell_time(NOW + GONE_S)
    assert gossip.nodes == {}


def test_a_record_dated_far_ahead_does_not_stay_for_years(gossip):
    assert gossip.learn(*record(said=NOW + FUTURE_S)) is None


def test_what_is_dropped_leaves_the_set_that_nodes_compare(gossip):
    before = gossip.summary()
    gossip.learn(*record())
    gossip.tell_time(NOW + GONE_S)
    assert gossip.summary() == before


# -- revocation ----------------------------------------------------------------------------------------------


def test_a_revoked_node_is_dropped_and_not_learned_again(gossip):
    gossip.learn(*record())
    assert gossip.learn(*revocation(NODE)) is not None
    assert gossip.nodes == {}
    assert gossip.learn(*record(said=NOW + 1)) is None
    assert gossip.learn(*revocation(NODE)) is None


def test_nobody_but_the_ca_and_its_issuers_can_revoke(gossip):
    for forged in (
        revocation(NODE, signer=OTHER),
        revocation(NODE, signer=OTHER, issuer=sign(Issuer(raw(OTHER), NOW + 9), OTHER)),
        revocation(NODE, signer=OTHER, issuer=sign(Issuer(raw(ISSUER), NOW + 9), CA)),
    ):
        with pytest.raises(SignatureError):
            gossip.learn(*forged)
    assert not gossip.members.is_revoked(NODE_ID)


def test_an_issuing_key_revokes_until_it_is_revoked_itself(gossip):
    issuer = sign(Issuer(raw(ISSUER), NOW + 9), CA)
    assert gossip.learn(*revocation(NODE, signer=ISSUER, issuer=issuer)) is not None
    gossip.learn(*revocation(ISSUER))
    assert gossip.learn(*revocation(OTHER, signer=ISSUER, issuer=issuer)) is None


def test_with_an_issuing_key_all_that_it_let_in_are_out(gossip):
    gossip.learn(*record(member=lent()))
    gossip.learn(*record(OTHER))
    gossip.learn(*revocation(ISSUER))
    assert list(gossip.nodes) == [digest(raw(OTHER))]
    assert gossip.learn(*record(said=NOW + 1, member=lent())) is None


# -- links ---------------------------------------------------------------------------------------------------


@pytest.fixture
def swarm():
    made = Swarm(Settings(raw(OTHER), raw(CA), "a", (), ("*",)), lambda _: False, None)
    made.tell_time(NOW, 0.0)
    made.announce(record(OTHER)[1], 0.0)
    return made


def greet(swarm):
    number = swarm.link_up(raw(NODE), None, 0.0)
    swarm.receive(number, Hello(1, record()[1]), 0.0)
    swarm.effects()
    return number


def test_the_link_of_a_node_that_is_revoked_is_cut_at_once(swarm):
    number = greet(swarm)
    swarm.publish(*revocation(NODE), 1.0)
    effects = swarm.effects()
    assert Hangup(number, "membership ended") in effects
    assert Send(number, Object(*revocation(NODE))) in effects, "it hears why"
    assert swarm.links == {}


def test_a_revoked_node_gets_no_hello(swarm):
    swarm.publish(*revocation(NODE), 0.0)
    swarm.effects()
    number = swarm.link_up(raw(NODE), None, 0.0)
    assert swarm.effects() == [Hangup(number, "revoked")]


def test_a_link_outlives_no_membership(swarm):
    number = greet(swarm)
    swarm.tell_time(NOW + 100, 1.0)
    assert Hangup(number, "membership ended") in swarm.effects()


def test_a_hello_with_an_expired_membership_is_refused(swarm):
    number = swarm.link_up(raw(NODE), None, 0.0)
    with pytest.raises(MessageError, match="is no member"):
        swarm.receive(number, Hello(1, record(until=NOW)[1]), 0.0)
    assert not any(isinstance(each, Bye) for each in swarm.effects())
