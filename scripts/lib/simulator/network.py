"""Network: lanes that share links as TCP flows do, as a fluid, a fraction of a chunk's time per step.

In each step every lane that has something to send gets its max-min fair share of the links on its path, bounded by
its congestion window (tcp.py) and by what it has to send. A link that is full builds a queue, which delays all that
crosses it: chunks, control messages, and the round trips that windows grow by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .clock import Clock
from .tcp import Tcp

PATH_LINKS: Final = 4
"""Most links on a path: up, out of the site, into the other site, down. Shorter paths are filled with link 0."""

_ENDLESS: Final = 1e18
_ROUNDS: Final = 24
_FULL: Final = 0.985
"""Part of a link's rate above which its queue grows."""

_LIMITED: Final = 0.97
"""Part of a limit above which it counts as what held a lane back."""

_LEAST_FREE: Final = 0.05
"""Part of a link that control traffic leaves to chunks."""

_BURST_S: Final = 0.05
"""Control messages that come together take their part of a link's capacity over this time."""

_LAST_BIT: Final = 1e-3
_LONGEST_S: Final = 0.02
_FIRST_ROOM: Final = 64

_LEFT, _BEHIND, _WINDOW, _RTT, _CAP, _SPEED, _GROWTH, _PACED = range(8)
"""Columns per lane: bytes to go of the item under way, bytes behind it, congestion window, round trip of light in
seconds, bytes per second that loss allows, rate since the last step, window growth per byte delivered, and 1 once
the network, not the window, was the limit."""

_COLUMNS: Final = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Path:
    """One direction between two hosts: link numbers, one-way delay and round trip of light, loss of packets."""

    links: tuple[int, ...]
    delay_s: float
    rtt_s: float
    loss: float


class Lane:
    """One direction of one connection: items leave in order.

    `left(item)` is called when the last byte has left, `deliver(item)` when it arrives.
    """

    __slots__ = (
        "blocked",
        "cap",
        "closed",
        "deliver",
        "gone",
        "idle_since_s",
        "left",
        "network",
        "path",
        "queue",
        "slot",
        "window",
    )

    def __init__(
        self, network: Network, path: Path, deliver: Callable[[Any], None], left: Callable[[Any], None]
    ) -> None:
        self.network = network
        self.path = path
        self.deliver = deliver
        self.left = left
        self.queue: deque[tuple[Any, float]] = deque()
        self.slot = -1
        self.window = 0.0  # bytes; kept while the lane is idle
        self.idle_since_s = 0.0
        self.blocked = False
        self.closed = False
        self.cap = math.inf
        """Bytes per second that the sender does not exceed, whatever the network would carry."""
        self.gone = 0.0  # bytes that have left, those of the item under way since it was entered last aside

    def sent_bytes(self) -> float:
        """Bytes that have left so far."""
        if self.slot < 0 or not self.queue:
            return self.gone
        return self.gone + max(self.queue[0][1] - self.network.left_of(self.slot), 0.0)

    def send(self, item: Any, size: float) -> None:
        """Queue an item of `size` bytes."""
        if self.closed:
            return
        self.queue.append((item, size))
        if self.slot >= 0:
            self.network.more(self.slot, size)
        elif not self.blocked:
            self.network.activate(self)

    def block(self, *, blocked: bool) -> None:
        """Stop the flow, as a cut path does, or let it go on."""
        if blocked == self.blocked:
            return
        self.blocked = blocked
        if blocked and self.slot >= 0:
            self.network.deactivate(self)
        elif not blocked and self.queue:
            self.network.activate(self)

    def close(self) -> None:
        """Drop what is queued; bytes already sent are spent."""
        self.closed = True
        if self.slot >= 0:
            self.network.deactivate(self)
        self.queue.clear()


class Network:
    """All links and the lanes that are busy.

    Shares are worked out at most every `step_s`, and hold until something ends or begins.
    """

    def __init__(self, clock: Clock, tcp: Tcp, step_s: float) -> None:
        self.tcp = tcp
        self.step_s = step_s
        self._clock = clock
        self._rates: list[float] = [_ENDLESS]
        self._buffers: list[float] = [_ENDLESS]
        self._busy: list[Lane] = []
        self._settled_s = 0.0  # all lanes' bytes are accounted for up to here
        self._next_s = math.inf  # when the next step is due
        self._links_changed = True
        self._rate: Floats = np.zeros(1)
        self._buffer: Floats = np.zeros(1)
        self._queue: Floats = np.zeros(1)
        self._wait: list[float] = [0.0]  # seconds of queue, per link
        self.control: list[float] = [0.0]  # control bytes that have yet to take their part of the capacity, per link
        self.carried: Floats = np.zeros(1)  # bytes of chunks so far, per link
        self._links = np.zeros((PATH_LINKS, _FIRST_ROOM), np.intp)
        self._lanes = np.zeros((_COLUMNS, _FIRST_ROOM))

    # -- links ----------------------------------------------------------------------------------------------

    def add_link(self, rate: float, buffer_s: float) -> int:
        """A link of `rate` bytes per second whose queue holds `buffer_s` seconds of it; returns its number."""
        self._rates.append(rate)
        self._buffers.append(rate * buffer_s)
        self._wait.append(0.0)
        self.control.append(0.0)
        self._links_changed = True
        return len(self._rates) - 1

    def wait_s(self, links: Sequence[int]) -> float:
        """Seconds that a packet spends in the queues of a path just now."""
        wait = self._wait
        return sum([wait[link] for link in links])

    def take_control(self, links: Sequence[int], size: int) -> float:
        """Send control messages of `size` bytes over a path; returns the seconds that they spend in its queues."""
        for link in links:
            self.control[link] += size
        return self.wait_s(links)

    def _take_links(self) -> None:
        """Take links that were added since the last step into the arrays."""
        count = len(self._rates)
        self._rate = np.array(self._rates)
        self._buffer = np.array(self._buffers)
        self._queue = np.concatenate([self._queue, np.zeros(count - len(self._queue))])
        self.carried = np.concatenate([self.carried, np.zeros(count - len(self.carried))])
        self._links_changed = False

    # -- lanes ----------------------------------------------------------------------------------------------

    def activate(self, lane: Lane) -> None:
        """Enter a lane that has something to send."""
        slot = lane.slot = len(self._busy)
        if slot == self._links.shape[1]:
            self._links = np.concatenate([self._links, np.zeros_like(self._links)], axis=1)
            self._lanes = np.concatenate([self._lanes, np.zeros_like(self._lanes)], axis=1)
        self._busy.append(lane)
        path, now_s = lane.path, self._clock.now_s
        self._links[:, slot] = (*path.links, *(0,) * (PATH_LINKS - len(path.links)))
        first, *others = [size for _, size in lane.queue]
        window = self.tcp.after_idle(lane.window, now_s - lane.idle_since_s, path.rtt_s)
        self._lanes[:, slot] = (first, sum(others), window, path.rtt_s, self._cap(lane), 0.0, 0.0, 0.0)
        self._plan(max(now_s, self._settled_s))

    def _cap(self, lane: Lane) -> float:
        return min(self.tcp.loss_limit(lane.path.rtt_s, lane.path.loss), lane.cap)

    def change(self, tcp: Tcp) -> None:
        """From now on senders behave like this."""
        self.tcp = tcp
        for slot, lane in enumerate(self._busy):
            self._lanes[_CAP, slot] = self._cap(lane)

    def more(self, slot: int, size: float) -> None:
        """A busy lane has more to send."""
        self._lanes[_BEHIND, slot] += size

    def left_of(self, slot: int) -> float:
        """Bytes to go of the item under way, as of the last step."""
        return float(self._lanes[_LEFT, slot])

    def deactivate(self, lane: Lane) -> None:
        """Take a lane out; an item under way keeps what it had left at the last step."""
        slot, last = lane.slot, len(self._busy) - 1
        lane.window = float(self._lanes[_WINDOW, slot])
        lane.idle_since_s = self._clock.now_s
        if lane.queue:
            item, size = lane.queue[0]
            left = max(float(self._lanes[_LEFT, slot]), 1.0)
            lane.queue[0] = (item, left)
            lane.gone += size - left
        moved = self._busy.pop()
        if slot != last:
            self._busy[slot] = moved
            moved.slot = slot
            self._links[:, slot] = self._links[:, last]
            self._lanes[:, slot] = self._lanes[:, last]
        lane.slot = -1

    # -- steps ----------------------------------------------------------------------------------------------

    def _plan(self, when_s: float) -> None:
        """Have the next step no later than this."""
        if when_s < self._next_s:
            self._next_s = when_s
            self._clock.at(when_s, self._step, when_s)

    def _step(self, due_s: float) -> None:
        """Account for the time since the last step, then move the fluid `step_s` ahead at new rates."""
        if due_s != self._next_s:
            return  # an earlier step was planned since
        self._next_s = math.inf
        if self._links_changed:
            self._take_links()
        passed_s = self._clock.now_s - self._settled_s
        count = len(self._busy)
        lanes, links = self._lanes[:, :count], self._links[:, :count]
        if passed_s > 0.0:
            self._pass(lanes, links, passed_s)
        step_s = self.step_s
        self._settled_s = self._clock.now_s + step_s
        free = np.maximum(self._rate - self._control_rates(passed_s + step_s), self._rate * _LEAST_FREE)
        rtt = lanes[_RTT] + np.array(self._wait)[links].sum(axis=0)
        limit = np.minimum(lanes[_WINDOW] / rtt, lanes[_CAP])
        backlog = lanes[_LEFT] + lanes[_BEHIND]
        demand = np.minimum(limit, backlog / step_s)
        rate, fair = fair_shares(links, demand, free)
        lanes[_SPEED] = rate
        self._fit_windows(lanes, rate, demand, limit, rtt)
        moved = np.minimum(rate * step_s, backlog)
        self._move(lanes, links, moved, step_s)
        done = np.nonzero(lanes[_LEFT] <= _LAST_BIT)[0]
        if len(done):
            self._finish(done, moved, np.minimum(limit, fair), rtt - lanes[_RTT])
            self._plan(self._settled_s)
        elif count:
            growing = rtt[rate >= _LIMITED * limit]
            rest_s = float((lanes[_LEFT] / np.maximum(rate, 1e-9)).min())
            longest_s = min(_LONGEST_S, float(growing.min()) / 2) if len(growing) else _LONGEST_S
            self._plan(self._settled_s + min(rest_s, longest_s))
        elif self._queue.any():
            self._plan(self._settled_s + step_s)

    def _control_rates(self, span_s: float) -> Floats:
        """Rates at which control traffic takes capacity: a queue holds its bursts, no flow backs off for them."""
        waiting = np.array(self.control)
        rate = waiting / max(span_s, _BURST_S)
        self.control = (waiting - rate * span_s).tolist()
        return rate

    def _pass(self, lanes: Floats, links: NDArray[np.intp], passed_s: float) -> None:
        """Nothing began or ended since the last step: the rates held."""
        moved = np.minimum(lanes[_SPEED] * passed_s, np.maximum(lanes[_LEFT] - 1.0, 0.0))
        self._move(lanes, links, moved, passed_s)

    def _move(self, lanes: Floats, links: NDArray[np.intp], moved: Floats, step_s: float) -> None:
        """Account for bytes that moved in `step_s`."""
        lanes[_LEFT] -= moved
        size = len(self._rate)
        load = per_link(links, moved, size)
        load[0] = 0.0
        self.carried += load
        crowd = per_link(links, lanes[_LEFT] + lanes[_BEHIND], size)
        lanes[_WINDOW] = np.minimum(lanes[_WINDOW] + moved * lanes[_GROWTH], self.tcp.max_window)
        self._fill(load / step_s, crowd, step_s)

    def _fit_windows(self, lanes: Floats, rate: Floats, demand: Floats, limit: Floats, rtt: Floats) -> None:
        """Windows shrink to what the network allowed, and grow by what is delivered while they are the limit."""
        held_back = rate < _LIMITED * demand
        ceiling = np.maximum(rate * rtt * self.tcp.overshoot, self.tcp.first_window)
        np.copyto(lanes[_WINDOW], np.minimum(lanes[_WINDOW], ceiling), where=held_back)
        lanes[_GROWTH] = 0.0
        full = (rate >= _LIMITED * limit) & ~held_back
        lanes[_GROWTH][full] = np.where(lanes[_PACED][full] > 0.0, self.tcp.growth_paced, 1.0)
        lanes[_PACED][held_back] = 1.0

    def _fill(self, used: Floats, crowd: Floats, step_s: float) -> None:
        """Queues grow on full links, towards what TCP leaves standing there, and drain on others."""
        rate = self._rate
        full = used > _FULL * rate
        target = np.minimum(self.tcp.standing_queue * self._buffer, crowd)
        grown = np.maximum(np.minimum(self._queue + 0.5 * rate * step_s, target), np.minimum(self._queue, target))
        drained = np.maximum(self._queue - np.maximum(rate - used, 0.0) * step_s, 0.0)
        self._queue = np.where(full, grown, drained)
        self._queue[0] = 0.0
        self._wait = (self._queue / rate).tolist()

    def _finish(self, done: NDArray[np.intp], moved: Floats, speed: Floats, wait_s: Floats) -> None:
        """Items whose last byte leaves in this step arrive after the path's delay and queues."""
        now_s, clock, lanes = self._clock.now_s, self._clock, self._lanes
        idle: list[Lane] = []
        for slot in done.tolist():
            lane = self._busy[slot]
            path, rate = lane.path, max(float(speed[slot]), 1.0)
            delay_s = path.delay_s + float(wait_s[slot])
            left, behind = float(lanes[_LEFT, slot]), float(lanes[_BEHIND, slot])
            gone = float(moved[slot]) + left  # bytes into the step at which the first item ended
            while lane.queue and left <= _LAST_BIT:
                item, size = lane.queue.popleft()
                lane.gone += size
                left_s = now_s + min(gone / rate, self.step_s)
                clock.at(left_s, self._left, lane, item)
                clock.at(left_s + delay_s, self._deliver, lane, item)
                if lane.queue:
                    size = lane.queue[0][1]
                    left += size
                    behind -= size
                    gone += size
            lanes[_LEFT, slot], lanes[_BEHIND, slot] = left, max(behind, 0.0)
            if not lane.queue:
                idle.append(lane)
        for lane in idle:
            self.deactivate(lane)

    def _left(self, lane: Lane, item: Any) -> None:
        if not lane.closed:
            lane.left(item)

    def _deliver(self, lane: Lane, item: Any) -> None:
        if not lane.closed:
            lane.deliver(item)


def per_link(links: NDArray[np.intp], amounts: Floats, size: int) -> Floats:
    """Sum of the flows' `amounts` over each of `size` links; `links` has a column per flow."""
    return np.bincount(links.ravel(), np.tile(amounts, len(links)), size).astype(np.float64, copy=False)


def fair_shares(links: NDArray[np.intp], demand: Floats, free: Floats) -> tuple[Floats, Floats]:
    """Max-min fair rates of flows over `links` (a column per flow), none above its `demand`.

    Returns the rates, and the share that each flow could have had. Flows whose demand is below their share, and all
    flows of a link that holds back every flow on it, are settled in each round; what they leave is dealt again
    (Bertsekas and Gallager, Data Networks, 6.5.2).
    """
    rate = np.zeros(len(demand))
    fair = np.zeros(len(demand))
    open_flows = np.arange(len(demand))
    free = free.copy()
    size = len(free)
    for _ in range(_ROUNDS):
        mine, wanted = links[:, open_flows], demand[open_flows]
        crowd = np.bincount(mine.ravel(), minlength=size)
        share = np.maximum(free, 0.0) / np.maximum(crowd, 1)
        each = share[mine]
        lowest = each.min(axis=0)
        content = wanted <= lowest
        held = (each <= lowest * (1 + 1e-9)) & ~content
        tight = np.bincount(mine.ravel(), held.ravel(), size) == crowd
        settled = content | (held & tight[mine]).any(axis=0)
        if not settled.any():
            break
        flows = open_flows[settled]
        fair[flows] = lowest[settled]
        rate[flows] = np.minimum(wanted, lowest)[settled]
        free -= per_link(links[:, flows], rate[flows], size)
        free[0] = _ENDLESS
        open_flows = open_flows[~settled]
        if not len(open_flows):
            return rate, fair
    share = np.maximum(free, 0.0) / np.maximum(np.bincount(links[:, open_flows].ravel(), minlength=size), 1)
    fair[open_flows] = share[links[:, open_flows]].min(axis=0)
    rate[open_flows] = np.minimum(demand[open_flows], fair[open_flows])
    return rate, fair
