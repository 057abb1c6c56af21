"""Leases that an event loop takes: at once, or not at all when another thread is at work."""

import threading
from contextlib import contextmanager

import pytest
from support.streams import Stream, model

from patchswarm.storage.errors import SlotGoneError

NOW = 1e9


@pytest.fixture
def slots(tmp_path):
    stream = Stream(tmp_path)
    stream.add(1, model(1))
    stream.commit(None, 1)
    return stream.slots


@contextmanager
def elsewhere(lock):
    """A lock that another thread holds."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_lease_that_nothing_stands_against_is_an_ordinary_lease(slots):
    lease = slots.try_lease(None, 60, NOW)
    assert lease.version == 1
    assert slots.renew(lease.id, 60, NOW + 30).expires_at == NOW + 90
    slots.release(lease.id)


def test_while_the_slots_are_being_changed_there_is_none(slots):
    with elsewhere(slots._lock):
        assert slots.try_lease(None, 60, NOW) is None
    assert slots.try_lease(None, 60, NOW) is not None


def test_while_the_catalog_is_being_written_only_one_that_is_not_kept_there(slots):
    with elsewhere(slots._catalog._lock):
        assert slots.try_lease(None, 60, NOW) is None
        assert slots.try_lease(None, 60, NOW, durable=False) is not None
    assert slots.try_lease(None, 60, NOW) is not None


def test_a_version_that_is_not_here_is_an_error_as_ever(slots):
    with pytest.raises(SlotGoneError):
        slots.try_lease(7, 60, NOW)
    with elsewhere(slots._lock):
        assert slots.try_lease(7, 60, NOW) is None
