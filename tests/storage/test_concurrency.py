"""Readers in many threads while versions come and go: each lease shows one whole version, start to end."""

import threading

import pytest
from support.streams import Stream, manifest_of, model, read_tree

from patchswarm.storage.errors import SlotGoneError, SlotsBusyError
from patchswarm.storage.verify import block_digests

VERSIONS = 12
ELEMENTS = 4000


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for version in range(1, VERSIONS + 1):
        side = b"x" * (version % 3)  # the layout changes now and then
        made.add(version, {**model(1, steps=version, elements=ELEMENTS), "side.json": side})
    made.commit(None, 1)
    return made


class Readers:
    """Threads that lease, read everything twice, compare, and let go, until told to stop."""

    def __init__(self, stream, count):
        self.stream = stream
        self.stop = threading.Event()
        self.released = threading.Condition()
        self.seen = set()
        self.wrong = []
        self.threads = [threading.Thread(target=self.read) for _ in range(count)]

    def read(self):
        while not self.stop.is_set():
            try:
                lease = self.stream.slots.lease(None, 1e9, 0, durable=False)
            except SlotGoneError:
                continue
            first, second = read_tree(lease.path), read_tree(lease.path)
            if not first == second == self.stream.trees[lease.version]:
                self.wrong.append(lease.version)
            self.seen.add(lease.version)
            self.stream.slots.release(lease.id)
            with self.released:
                self.released.notify_all()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def patiently(self, work):
        """Do `work` again after each release until the slots are not busy."""
        while True:
            try:
                return work()
            except SlotsBusyError:
                with self.released:
                    self.released.wait(1)


def test_readers_never_see_a_mix_of_two_versions(stream):
    with Readers(stream, 3) as readers:
        for version in range(2, VERSIONS + 1):
            readers.patiently(lambda version=version: stream.commit(version - 1, version))
            readers.patiently(lambda version=version: stream.twin(version - 1, version))
    assert not readers.wrong
    assert max(readers.seen) == VERSIONS
    assert stream.holds(stream.slots.current(), VERSIONS)


def test_a_verification_in_another_thread_never_finds_a_wrong_block_nor_stops_a_step(stream):
    tables = {}
    for version in range(1, VERSIONS + 1):
        with stream.source(version) as source:
            tables[manifest_of(version)] = block_digests(source, 1)
    wrong, done = [], threading.Event()

    def verify():
        while not done.is_set():
            for slot in stream.slots.slots():
                try:
                    if stream.slots.verify_slot(slot, tables[slot.manifest], 1):
                        wrong.append(slot)
                except SlotGoneError:
                    continue

    thread = threading.Thread(target=verify)
    thread.start()
    for version in range(2, VERSIONS + 1):
        stream.commit(version - 1, version)
        stream.twin(version - 1, version)
    done.set()
    thread.join()
    assert not wrong
