"""What is counted of two versions of a tensor, held against a reference that takes one element at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import stillness_reference as reference
from support.codec import changed_copy, random_bytes

from patchswarm.protocol.codec.order import pack_nibbles
from patchswarm.protocol.elements import BITS, Kind, width_bytes
from patchswarm.protocol.stillness import STEP_LIMIT, Counts, Tally, bound_bytes, exponent_of

kinds = st.sampled_from(list(Kind))


def seen(kind, old, new):
    counts = Counts(kind)
    counts.see(old, new)
    return counts


@st.composite
def versions(draw, kind):
    """Two versions of a tensor: any bits, or weights of which a few moved a little."""
    size = draw(st.integers(0, 300)) * 2
    seed = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        old = random_bytes(kind, size, seed)
        return old, changed_copy(kind, old, draw(st.floats(0, 1)), seed)
    random = np.random.default_rng(seed)
    old, new = (random.integers(0, 256, size * BITS[kind] // 8, dtype=np.uint8) for _ in range(2))
    return old, np.where(random.random(new.size) < draw(st.floats(0, 1)), old, new)


@given(st.data(), kinds)
def test_counts_are_those_of_the_reference(data, kind):
    old, new = data.draw(versions(kind))
    counts = seen(kind, old, new)
    present, changed, moved = reference.counts(kind, old, new)
    assert {at: n for at, n in enumerate(counts.present.tolist()) if n} == present
    assert {at: n for at, n in enumerate(counts.changed.tolist()) if n} == changed
    clipped, classes = {}, {}
    for (at, step), n in moved.items():
        key = at, min(max(step, -STEP_LIMIT), STEP_LIMIT)
        clipped[key] = clipped.get(key, 0) + n
        distance = (abs(step) - 1).bit_length()
        classes[distance] = classes.get(distance, 0) + n
    found = {(at, step - STEP_LIMIT): int(counts.steps[at, step]) for at, step in np.argwhere(counts.steps).tolist()}
    assert found == clipped
    assert {at: n for at, n in enumerate(counts.distances.tolist()) if n} == classes


@given(st.data(), kinds)
def test_the_bound_is_that_of_the_reference(data, kind):
    tensors = data.draw(st.lists(versions(kind), max_size=3))
    found, changed = bound_bytes(kind, tensors)
    assert found == pytest.approx(reference.bound_bytes(kind, tensors), abs=1e-6)
    assert changed == sum(sum(reference.counts(kind, *tensor)[1].values()) for tensor in tensors)


@given(st.data(), kinds)
def test_pieces_add_up_to_the_whole(data, kind):
    old, new = data.draw(versions(kind))
    cut = data.draw(st.integers(0, old.size // width_bytes(kind))) * width_bytes(kind)
    whole, parts = seen(kind, old, new), Counts(kind)
    parts.see(old[cut:], new[cut:])
    parts.see(old[:cut], new[:cut])
    for name in ("present", "changed", "steps", "distances"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


@given(st.data(), kinds)
def test_a_tensor_that_stays_costs_nothing(data, kind):
    old, _ = data.draw(versions(kind))
    assert bound_bytes(kind, [(old, old.copy())]) == (0.0, 0)


@pytest.mark.parametrize(
    ("kind", "old", "new", "distance"),
    [
        (Kind.BF16, 0x0000, 0x8000, 1),  # from zero to minus zero
        (Kind.BF16, 0x0001, 0x8001, 3),  # over both zeros
        (Kind.BF16, 0x3F80, 0x3F7F, 1),  # over a power of two
        (Kind.I8, 0x7F, 0x80, 1),  # integers wrap
        (Kind.U64, 0, 2**63, 2**63),
        (Kind.F64, 0x7FFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, 1),  # as far as the width tells
    ],
)
def test_distances_are_counted_in_the_order_of_values(kind, old, new, distance):
    dtype = f"u{BITS[kind] // 8}"
    counts = seen(kind, np.array([old], dtype).view(np.uint8), np.array([new], dtype).view(np.uint8))
    assert np.flatnonzero(counts.distances).tolist() == [(distance - 1).bit_length()]


def test_nibbles_move_by_their_own_width():
    old, new = (pack_nibbles(np.array(each, np.uint8) << 4) for each in ([0, 7, 15, 3], [1, 8, 0, 3]))
    counts = seen(Kind.I4, old, new)
    assert counts.distances[:2].tolist() == [3, 0]
    assert np.flatnonzero(counts.present).tolist() == [0, 3, 7, 15]


@pytest.mark.parametrize(
    ("kind", "one", "expected"),
    [
        (Kind.BF16, 0x3F80, 0),
        (Kind.F16, 0x3C00, 0),
        (Kind.F32, 0x3F800000, 0),
        (Kind.F64, 0x3FF0 << 48, 0),
        (Kind.F8_E4M3, 0x38, 0),
        (Kind.F8_E5M2, 0x3C, 0),
        (Kind.F8_E8M0, 0x80, 1),
        (Kind.U8, 1, None),
    ],
)
def test_contexts_of_floats_are_exponents(kind, one, expected):
    data = np.array([one], f"u{BITS[kind] // 8}").view(np.uint8)
    (context,) = np.flatnonzero(seen(kind, data, data).present).tolist()
    assert exponent_of(kind, context) == expected


def test_bytes_that_are_no_whole_elements_are_refused():
    four, three = np.zeros(4, np.uint8), np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="are no range of BF16 elements"):
        Counts(Kind.BF16).see(four, three)
    with pytest.raises(ValueError, match="are no range of BF16 elements"):
        Counts(Kind.BF16).see(three, three)


def test_a_tally_holds_no_more_however_much_it_saw():
    tally = Tally(Kind.BF16)
    before = random_bytes(Kind.BF16, 50_000, 1)
    for seed in range(3):
        counts = seen(Kind.BF16, before, changed_copy(Kind.BF16, before, 0.01, seed))
        tally.add(counts)
        held = [getattr(tally.whole, name) for name in ("present", "changed", "steps", "distances")]
        assert sum(array.nbytes for array in held) < 100_000
    assert tally.whole.present.sum() == 150_000
