"""Random histories of a stream's slots, against a model of what must hold whatever happens.

Publishes, routes, changes of layout, twins, leases, readers with mapped files, lost leases, restarts, kills in the
middle of a chunk, reboots, flipped bits, withdrawals and repairs, in any order.
"""

import shutil
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.streams import Stream, manifest_of, model, resharded

from patchswarm.storage.errors import LeaseGoneError, SlotGoneError, SlotsBusyError, UnknownLeaseError
from patchswarm.storage.files import Files
from patchswarm.storage.verify import block_digests

ELEMENTS = 1500


class Boots(Files):
    """Each reboot is another boot id."""

    def __init__(self, number=0):
        self.number = number

    def boot_id(self):
        return b"boot number %4d" % self.number


class Reader:
    """Somebody with a lease and the files mapped."""

    def __init__(self, lease):
        self.lease = lease
        self.expires_at = lease.expires_at
        self.seen = [np.memmap(path, np.uint8, "r") for path in sorted(lease.path.rglob("*.safetensors"))]
        self.before = [bytes(each) for each in self.seen]

    def sees_no_change(self):
        return [bytes(each) for each in self.seen] == self.before


class History(RuleBasedStateMachine):
    count = 2

    def __init__(self):
        super().__init__()
        shared = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None, prefix="patchswarm-history-"))
        self.boots = Boots()
        self.stream = Stream(self.root, count=self.count, files=self.boots)
        self.published = 0
        self.highest = 0
        self.now = 1000.0
        self.readers = []
        self.damaged = set()
        self.over = set()
        self.digests = {}

    def teardown(self):
        self.stream.catalog.close()
        shutil.rmtree(self.root)

    @property
    def slots(self):
        return self.stream.slots

    # the trainer and the fleet

    @rule(steps=st.integers(0, 3), other_layout=st.booleans(), side=st.integers(0, 2))
    def publish(self, steps, other_layout, side):
        self.published += 1
        tree = (resharded if other_layout else model)(1, steps=self.published + steps, elements=ELEMENTS)
        tree["generation.json"] = b"x" * side
        with self.stream.add(self.published, tree) as source:
            self.digests[manifest_of(self.published)] = block_digests(source, 1)

    def build(self, route):
        source = self.slots.find(manifest_of(route[0])) if route[0] else None
        if route[0] and source is None:
            return None
        with self.stream.source(route[1]) as first:
            try:
                building = self.slots.begin(first.layout, source)
            except SlotsBusyError:
                return None
        for old, new in pairwise(route):
            with self.stream.source(new) as leg:
                building.advance(leg.layout)
            for chunk in self.stream.chunks(old, new):
                building.apply(chunk)
        return building

    @rule(data=st.data(), new=st.integers(0, 2), other_layout=st.booleans(), give_up=st.integers(0, 4))
    def follow(self, data, new, other_layout, give_up):
        """Publish some versions, then reach one of them by some route from something that is here."""
        for _ in range(max(new, self.highest + 1 - self.published)):
            self.publish(1, other_layout, new)
        target = data.draw(st.integers(self.highest + 1, self.published))
        start = data.draw(st.sampled_from([*sorted(slot.version for slot in self.slots.slots()), None]))
        if start is not None and start >= target:
            return
        between = [] if start is None else data.draw(st.sets(st.integers(start + 1, target), max_size=2).map(sorted))
        route = [start, *(each for each in between if each != target), target]
        if self.damaged:
            route = [None, target]  # a flipped bit would rightly be refused by a record's check
        building = self.build(route)
        if building is None:
            return
        if give_up == 1:
            building.abort()
            return
        building.commit(1, target, manifest_of(target), "", proven=True)
        self.highest = target
        self.damaged = {slot.path for slot in self.slots.slots() if slot.withdrawn or slot.suspect}
        if not self.damaged and give_up > 2:
            self.make_twin()

    @precondition(lambda self: not self.damaged)
    @rule()
    def make_twin(self):
        current = self.slots.current()
        behind = [slot.version for slot in self.slots.slots() if current and slot.version < current.version]
        if not behind or self.count < 2:
            return
        building = self.build([max(behind), current.version])
        if building is not None:
            building.commit_twin(1, current.version, current.manifest, "", proven=True)

    @precondition(lambda self: self.published > self.highest and not self.damaged)
    @rule(part=st.floats(0, 1))
    def killed_while_building(self, part):
        current = self.slots.current()
        with self.stream.source(self.published) as target:
            try:
                building = self.slots.begin(target.layout, current)
            except SlotsBusyError:
                return
        chunks = self.stream.chunks(current.version if current else None, self.published)
        for chunk in chunks[: int(part * len(chunks))]:
            building.apply(chunk)
        self.restart()

    # readers

    @rule(ttl=st.floats(1, 100))
    def lease(self, ttl):
        with suppress(SlotGoneError):
            self.readers.append(Reader(self.slots.lease(None, ttl, self.now)))

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds):
        self.now += seconds
        self.slots.expire(self.now)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def release(self, data):
        reader = data.draw(st.sampled_from(self.readers))
        assert reader.sees_no_change()
        self.readers.remove(reader)
        try:
            self.slots.release(reader.lease.id)
        except (LeaseGoneError, UnknownLeaseError):
            # gone only because it ran out, was withdrawn, or the machine was started again
            assert self.now > reader.expires_at or reader.lease.id in self.over

    # misfortune

    @rule()
    def restart(self):
        self.stream.reopen()

    @rule()
    def reboot(self):
        self.boots = self.stream.files = Boots(self.boots.number + 1)
        self.over |= {reader.lease.id for reader in self.readers}
        self.readers = []  # they died with the machine
        self.stream.reopen()
        assert self.slots.current() is None
        self.verify()

    @rule(data=st.data(), from_peer=st.booleans())
    def bit_flips(self, data, from_peer):
        slots = [slot for slot in self.slots.slots() if slot.path not in self.damaged]
        if not slots or self.readers:
            return
        slot = data.draw(st.sampled_from(slots))
        path = data.draw(st.sampled_from(sorted(slot.path.rglob("*.safetensors"))))
        at = data.draw(st.integers(0, path.stat().st_size - 1))
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        with self.stream.source(slot.version) as source:
            blocks = list(source.layout.blocks())
            self.verify((lambda number: source.read(*blocks[number]).tobytes()) if from_peer else None)

    def verify(self, fetch=None):
        for slot in self.slots.slots():
            digests = self.digests[slot.manifest]
            bad = self.slots.verify_slot(slot, digests)
            if not bad:
                self.slots.mark_proven(slot)
                continue
            self.over |= {reader.lease.id for reader in self.readers}
            withdrawn = self.slots.withdraw(slot)
            with suppress(SlotsBusyError):
                if not self.slots.repair(withdrawn, bad, digests, fetch):
                    self.slots.mark_proven(withdrawn)
                    continue
            self.damaged.add(slot.path)
        self.damaged = {slot.path for slot in self.slots.slots() if slot.withdrawn or slot.suspect}

    # what must hold

    @invariant()
    def whatever_may_be_served_is_the_trainers(self):
        for slot in self.slots.slots():
            if not slot.withdrawn and not slot.suspect:
                assert self.stream.holds(slot, slot.version), slot.path

    @invariant()
    def the_current_version_is_the_highest_ever_committed(self):
        current = self.slots.current()
        newest = max((slot for slot in self.slots.slots() if not slot.twin), key=lambda slot: slot.order, default=None)
        if newest is not None and not newest.withdrawn and not newest.suspect:
            assert current == newest
            assert newest.version == self.highest
        elif self.highest:
            assert current is None

    @invariant()
    def no_reader_sees_its_files_change(self):
        assert all(reader.sees_no_change() for reader in self.readers)

    @invariant()
    def there_are_no_more_slots_than_asked_for_but_for_readers(self):
        read = {reader.lease.version for reader in self.readers}
        unread = [slot for slot in self.slots.slots() if slot.twin or slot.version not in read]
        assert len(unread) <= self.count
        assert len(self.slots.slots()) <= self.count + (self.count == 1)

    @invariant()
    def nothing_else_lies_about(self):
        names = {path.name for path in self.slots.directory.iterdir()}
        assert names == {slot.path.name for slot in self.slots.slots()}


class HistoryOfOne(History):
    count = 1


class HistoryOfThree(History):
    count = 3


_FEW = settings(max_examples=25, stateful_step_count=25, suppress_health_check=list(HealthCheck))
TestHistory = History.TestCase
TestHistory.settings = _FEW
TestHistoryOfOne = HistoryOfOne.TestCase
TestHistoryOfOne.settings = _FEW
TestHistoryOfThree = HistoryOfThree.TestCase
TestHistoryOfThree.settings = _FEW
