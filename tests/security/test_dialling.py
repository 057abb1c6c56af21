"""Nobody makes a node dial where it should not, or a fleet knock at one door, by what it says of itself."""

import asyncio
import ipaddress

import msgspec
import pytest
from daemon.single import until

from patchswarm.daemon.config import Config, Node
from patchswarm.daemon.errors import ConfigError
from patchswarm.daemon.fleet import reach as module
from patchswarm.daemon.fleet.reach import BURST, EVERY_S, Reach, ReachError
from patchswarm.daemon.home import Home
from patchswarm.protocol.manifest import NodeRecord
from patchswarm.protocol.messages import ObjectKind
from patchswarm.protocol.signed import sign

pytestmark = pytest.mark.timeout(60)
PUBLIC = Node(listen="0.0.0.0:7340", advertise=("198.51.100.7:7340",), seeds=("203.0.113.1:7340",))
LAB = Node(listen="127.0.0.1:7340")
FORBIDDEN = [
    "127.0.0.1:22",
    "127.9.9.9:80",
    "[::1]:7341",
    "[::ffff:127.0.0.1]:22",
    "169.254.169.254:80",
    "[::ffff:169.254.169.254]:80",
    "[fd00:ec2::254]:80",
    "100.100.100.200:80",
    "192.0.0.192:80",
    "0.0.0.0:80",
    "[::]:80",
    "224.0.0.1:80",
    "[fe80::1]:80",
    "255.255.255.255:80",
    "[2002:7f00:1::]:80",
]


@pytest.mark.parametrize("address", FORBIDDEN)
async def test_advertised_address_of_loopback_or_metadata_is_not_dialled(address):
    with pytest.raises(ReachError, match="no place that a peer may send this node to"):
        await Reach(PUBLIC).resolve(address)


@pytest.mark.parametrize("address", ["198.51.100.9:7340", "10.0.0.9:7340", "192.168.1.2:1", "[2001:db8::1]:7340"])
async def test_advertised_address_of_a_public_or_private_host_is(address):
    host, _, port = address.rpartition(":")
    assert await Reach(PUBLIC).resolve(address) == (host.strip("[]"), int(port))


async def test_name_that_resolves_to_loopback_is_not_dialled():
    with pytest.raises(ReachError):
        await Reach(PUBLIC).resolve("localhost:22")


async def test_name_is_looked_up_once_so_that_no_second_answer_counts(monkeypatch):
    answers = [[(2, 1, 6, "", ("198.51.100.9", 80))], [(2, 1, 6, "", ("127.0.0.1", 80))]]

    async def getaddrinfo(*_, **__):
        return answers.pop(0)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await Reach(PUBLIC).resolve("rebound.example:80") == ("198.51.100.9", 80)
    assert len(answers) == 1, "what is dialled is the number that was checked"


async def test_what_the_operator_has_configured_is_dialled():
    seeded = Node(listen="", seeds=("127.0.0.1:22",))
    assert await Reach(seeded).resolve("127.0.0.1:22") == ("127.0.0.1", 22)
    assert Reach(LAB).allows(ipaddress.ip_address("127.0.0.1"))
    assert not Reach(LAB).allows(ipaddress.ip_address("169.254.169.254"))
    there = msgspec.structs.replace(PUBLIC, dial_networks=("169.254.7.0/24",))
    assert await Reach(there).resolve("169.254.7.1:1") == ("169.254.7.1", 1)
    with pytest.raises(ReachError):
        await Reach(there).resolve("169.254.169.254:80")


def test_networks_are_checked_where_they_are_written(tmp_path):
    with pytest.raises(ConfigError, match=r"node: .*has host bits set"):
        Config.parse('[node]\ndial_networks = ["10.0.0.1/8"]', Home.at(tmp_path))


async def test_one_host_is_dialled_so_often_and_no_more():
    now_s = 0.0
    reach = Reach(PUBLIC, lambda: now_s)
    for port in range(BURST):
        await reach.resolve(f"198.51.100.9:{port + 1}")
    with pytest.raises(ReachError, match="dialled too often"):
        await reach.resolve("198.51.100.9:9999")
    await reach.resolve("198.51.100.10:1")
    now_s += EVERY_S
    await reach.resolve("198.51.100.9:9999")
    with pytest.raises(ReachError):
        await reach.resolve("198.51.100.9:9998")


async def test_hosts_that_are_counted_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_HOSTS", 4)
    reach = Reach(PUBLIC)
    for number in range(10):
        await reach.resolve(f"198.51.100.{number}:1")
    assert len(reach._dialled) == 4


async def test_member_that_names_a_victim_makes_nobody_connect_to_it(head, fleet):
    """A whole daemon: what a compromised member says of itself reaches the dialler, and stops there."""
    knocks = []
    victim = await asyncio.start_server(lambda _, writer: (knocks.append(1), writer.close()), "127.0.0.1", 0)
    port = victim.sockets[0].getsockname()[1]
    member = await fleet()
    head.fleet.doors.reach = Reach(PUBLIC)  # as on a host that is not a lab on loopback
    refused = []
    resolve = head.fleet.doors.reach.resolve

    async def noting(address):
        try:
            return await resolve(address)
        except ReachError:
            refused.append(address)
            raise

    head.fleet.doors.reach.resolve = noting
    await until(lambda: list(head.fleet.swarm.connected()))
    own = member.identity
    record = NodeRecord(
        own.node_public_key,
        bytes(16),
        head.fleet.swarm.gossip.nodes[own.node_id].serial + 1,
        "b",
        (f"127.0.0.1:{port}",),
        (),
        own.membership,
    )
    await member.stop()
    head.fleet.publish(ObjectKind.NODE, sign(record, own.node_key))
    await until(lambda: refused)
    assert refused[0] == f"127.0.0.1:{port}"
    assert not knocks
    victim.close()
