"""Looking into words of flags: the way that names a processor's instruction gives what the portable one does."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from patchswarm.protocol.codec import bits
from patchswarm.protocol.codec.bits import can_deposit, running_counts, select64_deposit, select64_portable

rng = np.random.default_rng(7)
WORDS = [1, 1 << 63, (1 << 64) - 1, 0x8000000000000001, *(int(w) for w in rng.integers(1, 1 << 63, 200, np.uint64))]


@njit
def _portable(word: np.uint64, rank: np.uint64) -> np.uint64:
    return select64_portable(word, rank)


@njit
def _deposit(word: np.uint64, rank: np.uint64) -> np.uint64:
    return select64_deposit(word, rank)


@njit
def _counts(words: NDArray[np.uint64], counts: NDArray[np.uint16]) -> None:
    running_counts(words, 0, counts, 0)


@pytest.mark.parametrize(
    "select",
    [
        _portable,
        pytest.param(_deposit, marks=pytest.mark.skipif(not can_deposit(), reason="this processor has no PDEP")),
    ],
)
def test_select_finds_the_bit_with_so_many_below_it(select):
    for word in WORDS:
        places = [bit for bit in range(64) if word >> bit & 1]
        found = [int(select(np.uint64(word), np.uint64(rank))) for rank in range(len(places))]
        assert found == places


def test_running_counts_are_prefix_sums_of_set_bits():
    words = np.array(WORDS[:64], np.uint64)
    counts = np.zeros(64, np.uint16)
    _counts(words, counts)
    assert counts.tolist() == np.cumsum([word.bit_count() for word in WORDS[:64]]).tolist()


def test_running_counts_of_full_words_reach_4096():
    counts = np.zeros(64, np.uint16)
    _counts(np.full(64, ~np.uint64(0), np.uint64), counts)
    assert counts.tolist() == list(range(64, 4097, 64))


def test_kernels_on_disk_are_outdated_by_a_change_in_any_file_of_the_package(monkeypatch):
    def probe() -> int:
        return 1

    cache = bits._KernelCache(probe)

    class Codegen:
        @staticmethod
        def magic_tuple():
            return ("machine",)

    before = cache._index_key((), Codegen)
    monkeypatch.setattr(bits, "_SOURCES", "another")
    assert cache._index_key((), Codegen) != before
