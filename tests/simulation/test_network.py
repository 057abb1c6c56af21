"""The network behaves as TCP over shared links does, in the cases that have an answer in a book."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator.clock import Clock
from simulator.network import Lane, Network, Path, fair_shares
from simulator.tcp import SEGMENT_BYTES, Tcp

MB = 1_000_000
WIDE = Tcp(first_window=1e9, max_window=1e9)
"""No slow start: what is left is the sharing."""


class Line:
    """A network with the times at which items arrived."""

    def __init__(self, tcp=WIDE, step_s=1e-3):
        self.clock = Clock()
        self.network = Network(self.clock, tcp, step_s)
        self.arrived = {}

    def lane(self, links, delay_s=0.0, loss=0.0):
        rtt_s = max(2 * delay_s, 1e-4)
        return Lane(
            self.network,
            Path(links, delay_s, rtt_s, loss),
            lambda item: self.arrived.setdefault(item, self.clock.now_s),
            lambda _: None,
        )

    def run(self):
        self.clock.run(1e6)


def test_one_flow_gets_the_narrowest_link():
    line = Line()
    wide, narrow = line.network.add_link(10 * MB, 0.0), line.network.add_link(2 * MB, 0.0)
    line.lane((wide, narrow), delay_s=0.25).send("a", 4 * MB)
    line.run()
    assert line.arrived["a"] == pytest.approx(2.25, rel=0.01)


def test_items_of_a_lane_arrive_in_order_and_fill_the_link():
    line = Line()
    lane = line.lane((line.network.add_link(10 * MB, 0.0),))
    for item in range(10):
        lane.send(item, MB)
    line.run()
    assert list(line.arrived) == list(range(10))
    assert line.arrived[9] == pytest.approx(1.0, rel=0.02)


def test_two_flows_share_a_link_and_the_survivor_takes_all():
    line = Line()
    link = line.network.add_link(10 * MB, 0.0)
    line.lane((link,)).send("short", 2 * MB)
    line.lane((link,)).send("long", 4 * MB)
    line.run()
    assert line.arrived["short"] == pytest.approx(0.4, rel=0.02)
    assert line.arrived["long"] == pytest.approx(0.6, rel=0.02)


def test_what_one_flow_cannot_use_goes_to_the_other():
    line = Line()
    shared, thin = line.network.add_link(10 * MB, 0.0), line.network.add_link(1 * MB, 0.0)
    line.lane((shared, thin)).send("thin", MB)
    line.lane((shared,)).send("fat", 9 * MB)
    line.run()
    assert line.arrived["fat"] == pytest.approx(1.0, rel=0.02)


def test_slow_start_doubles_the_window_each_round_trip():
    tcp = Tcp()
    line = Line(tcp)
    link = line.network.add_link(1000 * MB, 0.0)
    line.lane((link,), delay_s=0.05).send("a", 1 * MB)
    line.run()
    rounds = math.log2(MB / tcp.first_window + 1)
    assert line.arrived["a"] == pytest.approx(0.1 * rounds + 0.05, rel=0.35)


def test_a_flow_is_bounded_by_its_largest_window():
    line = Line(Tcp(first_window=1 * MB, max_window=1 * MB))
    line.lane((line.network.add_link(1000 * MB, 0.0),), delay_s=0.05).send("a", 20 * MB)
    line.run()
    assert line.arrived["a"] == pytest.approx(2.05, rel=0.02)


def test_loss_holds_cubic_to_the_formula_and_bbr_not():
    rtt_s, loss = 0.1, 0.005
    assert Tcp().loss_limit(rtt_s, loss) == pytest.approx(17.3 * SEGMENT_BYTES / rtt_s, rel=0.01)
    assert Tcp(bbr=True).loss_limit(rtt_s, loss) == math.inf


def test_senders_that_change_to_bbr_leave_the_formula_behind_on_lanes_that_are_busy_too():
    line = Line(Tcp(first_window=1e9, max_window=1e9))
    link = line.network.add_link(10 * MB, 0.0)
    line.lane((link,), delay_s=0.05, loss=0.005).send("a", 5 * MB)
    line.clock.at(4.0, line.network.change, Tcp(bbr=True, first_window=1e9, max_window=1e9))
    line.run()
    before = 4.0 * Tcp().loss_limit(0.1, 0.005)
    assert line.arrived["a"] == pytest.approx(4.0 + (5 * MB - before) / (10 * MB) + 0.05, rel=0.02)


def test_a_full_link_delays_control_messages_and_an_idle_one_does_not():
    line = Line(Tcp())
    link = line.network.add_link(10 * MB, 0.1)
    for item in range(4):
        line.lane((link,), delay_s=0.01).send(item, 5 * MB)
    line.clock.run(1.0)
    assert 0.02 < line.network.wait_s((link,)) <= 0.1
    line.run()
    line.clock.run(1e6 + 1)
    assert line.network.wait_s((link,)) == 0.0


def test_a_burst_of_control_messages_takes_its_bytes_of_a_link_and_makes_no_flow_back_off():
    line = Line(Tcp())
    link = line.network.add_link(10 * MB, 0.05)
    line.lane((link,), delay_s=0.01).send("a", 10 * MB)

    def burst():
        line.network.control[link] += 0.1 * MB

    for at in range(1, 10):
        line.clock.at(at / 10, burst)
    line.run()
    assert line.arrived["a"] == pytest.approx(1.0 + 0.09 + 0.1, abs=0.08)


def test_a_blocked_lane_goes_on_where_it_stopped():
    line = Line()
    lane = line.lane((line.network.add_link(10 * MB, 0.0),))
    lane.send("a", 10 * MB)
    line.clock.at(0.5, lambda: lane.block(blocked=True))
    line.clock.at(5.0, lambda: lane.block(blocked=False))
    line.run()
    assert line.arrived["a"] == pytest.approx(5.5, abs=0.05)


def test_a_closed_lane_delivers_nothing():
    line = Line()
    lane = line.lane((line.network.add_link(10 * MB, 0.0),))
    lane.send("a", 10 * MB)
    line.clock.at(0.5, lane.close)
    line.run()
    assert line.arrived == {}


@given(st.data())
def test_fair_shares_fit_the_links_and_leave_nobody_behind(data):
    count = data.draw(st.integers(1, 12))
    size = data.draw(st.integers(1, 6))
    capacity = np.array([1e18] + [data.draw(st.floats(1.0, 100.0)) for _ in range(size)])
    links = np.array([[data.draw(st.integers(0, size)) for _ in range(count)] for _ in range(2)])
    links[1, links[0] == links[1]] = 0  # a path uses a link once
    demand = np.array([data.draw(st.floats(0.1, 200.0)) for _ in range(count)])
    rate, _ = fair_shares(links, demand, capacity)
    load = np.bincount(links.ravel(), np.tile(rate, 2), size + 1)
    assert (rate <= demand * (1 + 1e-9)).all()
    assert (load[1:] <= capacity[1:] * (1 + 1e-6)).all()
    for flow in range(count):  # max-min: a flow below its demand crosses a full link on which nobody gets more
        if rate[flow] < demand[flow] * (1 - 1e-6):
            assert any(
                load[link] >= capacity[link] * (1 - 1e-6)
                and rate[flow] >= rate[(links == link).any(axis=0)].max() * (1 - 1e-6)
                for link in links[:, flow]
                if link
            )
