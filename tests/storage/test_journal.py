"""A journal names everything that was touched, whatever a crash cut off, and undo data bring the old bytes back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.storage.errors import SlotStateError
from patchswarm.storage.files import Files
from patchswarm.storage.journal import WHOLE, Journal, Touched, difference, encode_entry, read_journal, undo_difference

ENTRIES = [
    [Touched("a", 0, 10)],
    [Touched("b/c", 5, 20), Touched("a", 100, 1)],
    [Touched("d", 0, WHOLE)],
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def flat(entries):
    return [touched for entry in entries for touched in entry]


def test_entries_come_back_in_order(path):
    journal = Journal(path, Files())
    for entry in ENTRIES:
        journal.append(entry)
    journal.append([])
    assert read_journal(path, Files()) == flat(ENTRIES)
    journal.close()
    again = Journal(path, Files())
    again.append([Touched("more", 0, 1)])
    again.close()
    assert read_journal(path, Files()) == [*flat(ENTRIES), Touched("more", 0, 1)]


def test_no_journal_is_an_empty_one(path):
    assert read_journal(path, Files()) == []


def test_a_removed_journal_is_gone(path):
    journal = Journal(path, Files())
    journal.append(ENTRIES[0])
    journal.remove()
    assert not path.exists()


def test_cut_off_anywhere_it_gives_the_whole_entries_before(path):
    encoded = [encode_entry(entry) for entry in ENTRIES]
    data = b"".join(encoded)
    ends = [sum(map(len, encoded[:count])) for count in range(len(encoded) + 1)]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = max(count for count, end in enumerate(ends) if end <= cut)
        assert read_journal(path, Files()) == flat(ENTRIES[:whole])


@given(data=st.data())
def test_damage_never_raises_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("journal") / "journal"
    raw = bytearray(b"".join(map(encode_entry, ENTRIES)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = read_journal(path, Files())
    except SlotStateError:
        return
    assert found == flat(ENTRIES)[: len(found)]


@given(st.binary(max_size=300), st.data())
def test_undo_data_bring_back_the_old_bytes(old, data):
    before = np.frombuffer(old, np.uint8)
    after = before.copy()
    for at in data.draw(st.sets(st.integers(0, max(len(old) - 1, 0)), max_size=20)) if old else ():
        after[at] = data.draw(st.integers(0, 255))
    target = after.copy()
    undo_difference(target, difference(before, after))
    assert bytes(target) == old


@pytest.mark.parametrize("undo", [b"", b"garbage", difference(np.zeros(9, np.uint8), np.ones(9, np.uint8))])
def test_undo_data_that_do_not_fit_are_refused(undo):
    with pytest.raises(SlotStateError):
        undo_difference(np.zeros(4, np.uint8), undo)
