"""The WAN lab's model of links, and a small lab with real TCP in it where there can be one."""

import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from wanlab.baselines import gateways, mesh
from wanlab.cases import case
from wanlab.flows import Flows
from wanlab.lab import running
from wanlab.links import Network
from wanlab.namespaces import missing
from wanlab.plan import MBIT, Host, Plan, Site, three_sites

MIB = 2**20


def small(**settings):
    """Two sites; a host and its mate in the first, one host in the second."""
    hosts = (Host("head", "a", 4 * MBIT, 4 * MBIT), Host("a1", "a", 4 * MBIT, 4 * MBIT))
    return Plan(
        (Site("a", MBIT, MBIT), Site("b", MBIT, MBIT)),
        (*hosts, Host("b1", "b", 4 * MBIT, 4 * MBIT)),
        {("a", "b"): 0.1},
        **settings,
    )


def packet(plan, source, target, size=1250):
    """An IPv4 packet without a meaning."""
    addresses = socket.inet_aton(plan.address(source)) + socket.inet_aton(plan.address(target))
    return (b"\x45" + bytes(11) + addresses).ljust(size, b"\0")


def arrivals(network, until_s):
    """(time, host) of everything that arrives up to then, looked at as rarely as the hub might."""
    found = []
    while (next_s := network.next_s()) is not None and next_s <= until_s:
        found += [(round(next_s, 6), target) for target, _ in network.due(next_s)]
    return found


def test_the_bounds_are_those_of_the_issue():
    assert case("T1", 1).bound_s == pytest.approx(5.37, abs=0.01)
    assert case("T3", 1).bound_s == pytest.approx(6.71, abs=0.01)


def test_a_packet_takes_each_links_time_and_the_way():
    network = Network(small())
    network.enter(0, packet(small(), "head", "b1"), 1.0)
    # 10 kbit: 2.5 ms on each access link, 10 ms on each WAN link, 100 ms between the sites
    assert arrivals(network, 2.0) == [(pytest.approx(1.125), 2)]


def test_mates_do_not_use_the_wan():
    network = Network(small())
    network.enter(0, packet(small(), "head", "a1"), 0.0)
    assert arrivals(network, 1.0) == [(pytest.approx(0.0052), 1)]
    assert network.bytes()["a wan up"] == 0


def test_a_links_rate_is_shared_and_exact_however_late_the_clock_is_looked_at():
    network = Network(small(wan_queue_s=10.0, access_queue_s=10.0))
    for _ in range(50):
        network.enter(0, packet(small(), "head", "b1"), 0.0)
        network.enter(1, packet(small(), "a1", "b1"), 0.0)
    assert len(network.due(60.0)) == 100
    assert network.links["b wan down"].free_at_s == pytest.approx(0.0025 + 100 * 0.010 + 0.1 + 0.010)


def test_a_full_queue_drops_and_counts():
    network = Network(small(wan_queue_s=0.1, access_queue_s=10.0))
    for _ in range(100):
        network.enter(0, packet(small(), "head", "b1", 9000), 0.0)
    arrived = len(network.due(60.0))
    counters = network.counters()["a wan up"]
    assert arrived == counters["packets"]
    assert arrived + counters["dropped"] == 100
    assert counters["dropped"] > 50


def test_a_parted_site_hears_nothing_until_it_is_joined_again():
    network = Network(small())
    network.cut("b")
    network.enter(0, packet(small(), "head", "b1"), 0.0)
    network.enter(2, packet(small(), "b1", "head"), 0.0)
    network.enter(0, packet(small(), "head", "a1"), 0.0)
    assert [target for _, target in arrivals(network, 5.0)] == [1]
    network.heal()
    network.enter(0, packet(small(), "head", "b1"), 6.0)
    assert [target for _, target in arrivals(network, 9.0)] == [2]


def test_the_seed_decides_which_packets_are_lost():
    def lost(seed):
        network = Network(small(loss=0.1, seed=seed, wan_queue_s=99.0, access_queue_s=99.0))
        for number in range(500):
            network.enter(0, packet(small(), "head", "b1"), float(number))
        return [at for at, _ in arrivals(network, 1000.0)]

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    assert 400 < len(lost(1)) < 490


def segment(source, target, sequence, payload=b"", flags=0, ports=(1000, 2000)):
    """A TCP segment between two hosts."""
    head = b"\x45" + bytes(8) + b"\x06" + bytes(2) + socket.inet_aton(source) + socket.inet_aton(target)
    return head + struct.pack(">HHIIBBHHH", *ports, sequence & 0xFFFFFFFF, 0, 5 << 4, flags, 0, 0, 0) + payload


def test_a_flow_counts_the_stream_and_not_what_tcp_repeats():
    flows = Flows()
    start = 2**32 - 10  # the sequence number wraps on the way
    flows.see(segment("10.66.1.1", "10.66.2.1", start, flags=2))
    flows.see(segment("10.66.2.1", "10.66.1.1", 5, flags=2, ports=(2000, 1000)))
    for at in (1, 101, 101, 1, 201):
        flows.see(
            segment("10.66.1.1", "10.66.2.1", start + at, b"PSLANE1\n".ljust(100, b"x") if at == 1 else bytes(100))
        )
    assert sorted(flows.totals()) == [
        ("10.66.1.1", "10.66.2.1", "lane", 300),
        ("10.66.2.1", "10.66.1.1", "lane", 0),
    ]


def test_every_pair_is_connected_once_and_gateways_alone_face_other_sites():
    plan = three_sites(wan=1.0, access=1.0, delays_s=(0.0, 0.0, 0.0))
    assert sum(map(len, mesh(plan).values())) == 9 * 8 // 2
    dialled = [(one, other) for one, others in gateways(plan).items() for other in others]
    across = {(one, other) for one, other in dialled if plan.host(one).site != plan.host(other).site}
    assert across == {("head", "b1"), ("head", "c1"), ("b1", "c1")}
    assert len(dialled) == 3 * 3 + 3


@pytest.fixture
def many_open_files():
    """More than select takes: what a long test run may hold when it starts a lab."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(1100, most - 100)
    with contextlib.ExitStack() as files:
        for _ in range(wanted):
            files.enter_context(Path(os.devnull).open("rb"))
        yield


@pytest.mark.usefixtures("many_open_files")
@pytest.mark.skipif(bool(missing()), reason=f"the WAN lab needs {missing()}")
def test_real_tcp_runs_over_the_lab_and_nothing_of_it_is_left():
    plan = three_sites(wan=40 * MBIT, access=100 * MBIT, delays_s=(0.01, 0.02, 0.03))
    with running(plan) as lab:

        def start(host, script, *arguments):
            command = [*lab.hosts[host].enter, sys.executable, "-c", script, *arguments]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        receive = (
            "import socket; s = socket.create_server(('0.0.0.0', 5000)); print('up', flush=True); c, _ = s.accept()\n"
            "print(sum(iter(lambda: len(c.recv(1 << 20)), 0)))"
        )
        send = "import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes(int(sys.argv[2])))"
        with start("c1", receive) as receiver:
            try:
                assert receiver.stdout.readline() == "up\n"
                with start("head", send, lab.hosts["c1"].address, str(2 * MIB)) as sender:
                    assert sender.wait(60) == 0
                assert receiver.communicate(timeout=30)[0] == f"{2 * MIB}\n"
            finally:
                receiver.kill()  # else leaving the context waits for a peer that never came
        counters = lab.counters()
    assert 2 * MIB < counters["links"]["c wan down"]["bytes"] < 2.1 * MIB
    assert counters["links"]["b wan down"]["bytes"] == 0
    assert counters["links"]["a1 up"]["bytes"] == 0
