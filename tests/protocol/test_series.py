"""Series: the numbered chunks of one attempt, their names, and what contradicts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.versions import Publisher

from patchswarm.protocol.errors import MessageError, SealError
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import IndexPage
from patchswarm.protocol.messages import META_ORDINAL
from patchswarm.protocol.ranges import to_ranges
from patchswarm.protocol.seal import INDEX_ENTRY, open_blob
from patchswarm.protocol.series import MAX_CHUNKS, MAX_META, ChunkSet, Series
from patchswarm.protocol.signed import peek

NODE = digest(b"node")


@pytest.fixture
def made():
    return Publisher().version(1, node=NODE, chunks=10, page=4)


@pytest.fixture
def series(made):
    return Series("qwen", made.attempt, (1, 1), b"")


def index_of(made):
    part = made.transition.parts[0]
    return open_blob(part.index, [made.lists[name] for name, _ in part.index.chunks])


def page_of(made, number):
    return peek(made.pages[number], IndexPage), made.pages[number]


def test_names_come_page_by_page_and_the_index_says_the_same(series, made):
    series.describe(made.opening)
    for number in range(3):
        assert series.add_page(*page_of(made, number))
    assert not series.add_page(*page_of(made, 0)), "a page counts once"
    assert series.expected() is None
    assert to_ranges(series.named) == [(0, 9)]
    series.describe(made.transition)
    series.add_index(0, index_of(made))
    assert [series.entry(ordinal)[0] for ordinal in range(10)] == list(made.chunks)
    assert to_ranges(series.expected()) == [(0, 9)]
    assert list(series.signed_pages()) == made.pages


def test_an_index_alone_names_everything(series, made):
    series.describe(made.transition)
    series.add_index(0, index_of(made))
    assert [series.entry(ordinal) for ordinal in range(10)] == [(name, 40_000) for name in made.chunks]


def test_lists_are_numbered_layout_first_so_that_the_openings_numbers_stay(series, made):
    series.describe(made.opening)
    (layout,) = series.meta
    series.describe(made.transition)
    part = made.transition.parts[0]
    assert series.meta == [layout, *part.digests.chunks, *part.index.chunks]
    assert series.entry(META_ORDINAL) == layout
    assert series.named_meta == 0b111


def test_an_opening_may_come_after_its_transition(series, made):
    series.describe(made.transition)
    before = list(series.meta)
    series.describe(made.opening)
    assert series.meta == before
    assert (series.opening, series.transition) == (made.opening, made.transition)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_opening_and_a_transition_with_different_layouts_contradict(series, made, order):
    other = Publisher(seed=1).version(1, node=NODE)
    said = (made.opening, other.transition)
    series.describe(said[order[0]])
    with pytest.raises(MessageError, match="does not keep to its opening"):
        series.describe(said[order[1]])


def test_a_page_and_an_index_that_name_one_chunk_differently_contradict(series, made):
    other = Publisher(seed=1).version(1, node=NODE, chunks=10, page=4)
    series.describe(made.transition)
    series.add_page(*page_of(other, 1))
    with pytest.raises(MessageError, match=r"chunk 4 of attempt .* has two names"):
        series.add_index(0, index_of(made))


@pytest.mark.parametrize(
    "wrong", [lambda data: data[:-36], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: data + data]
)
def test_another_index_than_the_transition_names_is_refused(series, made, wrong):
    series.describe(made.transition)
    data = wrong(index_of(made))
    with pytest.raises(MessageError, match="not the one its transition names"):
        series.add_index(0, data)
    assert series.named == 0


def test_a_torn_index_is_refused(series, made):
    series.describe(made.transition)
    with pytest.raises(SealError):
        series.add_index(0, index_of(made)[:-1])


def test_no_series_has_more_chunks_than_bitmaps_may_grow_to(series, made):
    page = IndexPage("qwen", made.attempt, 0, MAX_CHUNKS - 1, INDEX_ENTRY.pack(bytes(32), 100) * 2)
    with pytest.raises(MessageError, match=f"more than {MAX_CHUNKS} chunks"):
        series.add_page(page, b"")
    part = msgspec.structs.replace(made.transition.parts[0], first=MAX_CHUNKS - 5)
    with pytest.raises(MessageError, match=f"over the limit of {MAX_CHUNKS}"):
        series.describe(msgspec.structs.replace(made.transition, parts=(part,)))
    assert series.transition is None
    many = msgspec.structs.replace(made.transition.parts[0].index, chunks=((bytes(32), 100),) * (MAX_META + 1))
    part = msgspec.structs.replace(made.transition.parts[0], index=many)
    with pytest.raises(MessageError):
        series.describe(msgspec.structs.replace(made.transition, parts=(part,)))


def test_it_is_complete_when_every_chunk_and_list_is_here(series, made):
    series.describe(made.transition)
    assert not series.complete()
    series.add_index(0, index_of(made))
    everything = [*range(10), *(META_ORDINAL + number for number in range(3))]
    for ordinal in everything:
        assert not series.complete()
        series.have.add(ordinal)
    assert series.complete()
    assert series.missing_bytes() == 0


def test_missing_bytes_are_known_before_the_index_is(series, made):
    series.describe(made.transition)
    lists = sum(size for _, size in series.meta)
    assert series.missing_bytes() == 400_000 + lists
    series.add_index(0, index_of(made))
    assert series.missing_bytes() == 400_000 + lists
    series.have.add(3)
    series.have.add(META_ORDINAL)
    assert series.missing_bytes() == 360_000 + lists - series.meta[0][1]


def test_what_the_store_lost_is_missing_again(series, made):
    series.describe(made.transition)
    series.add_index(0, index_of(made))
    for ordinal in (0, 1, META_ORDINAL, META_ORDINAL + 1):
        series.have.add(ordinal)
    kept = {series.entry(1)[0], series.entry(META_ORDINAL + 1)[0]}
    series.keep_only(kept.__contains__)
    assert (series.have.data, series.have.meta) == (0b10, 0b10)


def test_every_ordinal_is_placed_once(series, made):
    series.describe(made.opening)
    series.add_page(*page_of(made, 0))
    assert series.take_unplaced() == [META_ORDINAL, 0, 1, 2, 3]
    assert series.take_unplaced() == []
    series.add_page(*page_of(made, 1))
    series.describe(made.transition)
    assert series.take_unplaced() == [META_ORDINAL + 1, META_ORDINAL + 2, 4, 5, 6, 7]


# -- chunk sets ----------------------------------------------------------------------------------------------

members = st.sets(st.integers(0, 300) | st.integers(META_ORDINAL, META_ORDINAL + 40))


def set_of(ordinals):
    made = ChunkSet()
    for ordinal in ordinals:
        made.add(ordinal)
    return made


@given(members, members)
def test_a_chunk_set_is_a_set(one, other):
    made = set_of(one)
    for ordinal in other:
        made.remove(ordinal)
    assert {ordinal for ordinal in one | other if ordinal in made} == one - other
    assert bool(made) == bool(one - other)


@given(members)
def test_a_have_says_what_is_in_the_set_and_no_more(ordinals):
    made, heard = set_of(ordinals), ChunkSet()
    heard.add_ranges(made.ranges())
    assert (heard.data, heard.meta) == (made.data, made.meta)


@pytest.mark.parametrize(
    "ranges",
    [
        ((0, MAX_CHUNKS),),
        ((MAX_CHUNKS, MAX_CHUNKS + 1),),
        ((5, META_ORDINAL + 1),),
        ((META_ORDINAL - 1, META_ORDINAL),),
        ((META_ORDINAL, META_ORDINAL + MAX_META),),
    ],
)
def test_ordinals_that_no_series_can_have_are_refused(ranges):
    with pytest.raises(MessageError, match="no series has chunks"):
        ChunkSet().add_ranges(ranges)
