"""Series: the numbered chunks of one attempt, which of them exist, and which of them are here.

A series begins with an opening (names arrive page by page while the head encodes) or with a transition record
(names come from the index blob). Chunks of the blobs are numbered from META_ORDINAL in HAVE and REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from .errors import MessageError
from .ids import digest, short
from .manifest import BlobRef, IndexPage, Opening, Transition
from .messages import META_ORDINAL
from .ranges import bits_of_ranges, iterate, mask, to_ranges
from .seal import index_entries

MAX_CHUNKS: Final = 2**20
"""Most chunks of one transition: 4 TB at 4 MiB. Bounds the bitmaps that a peer can make us hold."""

MAX_META: Final = 4096


@dataclass(slots=True)
class ChunkSet:
    """Which chunks of one series someone has: two bitmaps, data and blobs."""

    data: int = 0
    meta: int = 0

    def add(self, ordinal: int) -> None:
        """Include one ordinal as HAVE numbers it."""
        if ordinal >= META_ORDINAL:
            self.meta |= 1 << (ordinal - META_ORDINAL)
        else:
            self.data |= 1 << ordinal

    def remove(self, ordinal: int) -> None:
        """Exclude one ordinal."""
        if ordinal >= META_ORDINAL:
            self.meta &= ~(1 << (ordinal - META_ORDINAL))
        else:
            self.data &= ~(1 << ordinal)

    def meets(self, other: ChunkSet) -> bool:
        """Whether some chunk is in both."""
        return bool(self.data & other.data or self.meta & other.meta)

    def __contains__(self, ordinal: int) -> bool:
        if ordinal >= META_ORDINAL:
            return bool(self.meta >> (ordinal - META_ORDINAL) & 1)
        return bool(self.data >> ordinal & 1)

    def size_bytes(self) -> int:
        """Memory that the bitmaps take, about."""
        return (self.data.bit_length() + self.meta.bit_length()) // 8

    def __bool__(self) -> bool:
        return bool(self.data or self.meta)

    def add_ranges(self, ranges: tuple[tuple[int, int], ...]) -> None:
        """Include the ranges of a HAVE. Raises MessageError for ordinals that no series can have."""
        data, meta = [], []
        for first, last in ranges:
            if last < MAX_CHUNKS:
                data.append((first, last))
            elif first >= META_ORDINAL and last < META_ORDINAL + MAX_META:
                meta.append((first - META_ORDINAL, last - META_ORDINAL))
            else:
                raise MessageError(f"no series has chunks {first} to {last}")
        if data:
            self.data |= bits_of_ranges(data)
        if meta:
            self.meta |= bits_of_ranges(meta)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Ranges for a HAVE."""
        meta = [(first + META_ORDINAL, last + META_ORDINAL) for first, last in to_ranges(self.meta)]
        return (*to_ranges(self.data), *meta)


def meta_blobs(of: Opening | Transition) -> list[BlobRef]:
    """The blobs in the order in which their chunks are numbered: all layouts, then all digest tables, then indexes.

    An opening knows the layouts only, so what it numbers keeps its number in the transition.
    """
    blobs = [part.layout for part in of.parts]
    if isinstance(of, Transition):
        blobs += [part.digests for part in of.parts]
        blobs += [part.index for part in of.parts]
    return blobs


@dataclass(slots=True)
class Series:
    """One attempt's chunks, as known to this node."""

    stream: str
    attempt: bytes
    version: tuple[int, int]  # (epoch, version) that it leads to
    source: bytes  # manifest digest that it starts from, or empty
    opening: Opening | None = None
    transition: Transition | None = None
    meta: list[tuple[bytes, int]] = field(default_factory=list)
    chunks: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    pages: dict[int, bytes] = field(default_factory=dict)  # first ordinal -> signed page
    named: int = 0  # bitmap of data ordinals whose name is known
    have: ChunkSet = field(default_factory=ChunkSet)
    asked: ChunkSet = field(default_factory=ChunkSet)  # requests under way
    awaited: int = 0  # bitmap of data ordinals asked of a peer before it has them
    _placed: ChunkSet = field(default_factory=ChunkSet)
    _expected: int | None = None

    def describe(self, of: Opening | Transition) -> None:
        """Take the blob references of an opening or transition of this attempt."""
        meta = [chunk for blob in meta_blobs(of) for chunk in blob.chunks]
        common = min(len(meta), len(self.meta))  # either may come first; the opening numbers the layouts alone
        if len(meta) > MAX_META or meta[:common] != self.meta[:common]:
            raise MessageError(f"attempt {short(self.attempt)} does not keep to its opening")
        if isinstance(of, Transition):
            end = max(part.first + part.count for part in of.parts)
            if end > MAX_CHUNKS:
                raise MessageError(f"attempt {short(self.attempt)} has {end} chunks, over the limit of {MAX_CHUNKS}")
            self.transition = of
            self._expected = _all_of(of)
        else:
            self.opening = of
        if len(meta) > len(self.meta):
            self.meta = meta

    def add_page(self, page: IndexPage, signed: bytes) -> bool:
        """Take a page. Returns whether it is new. Raises MessageError when it contradicts what is known."""
        entries = index_entries(page.entries)
        if page.first in self.pages:
            return False
        self._name(page.first, entries)
        self.pages[page.first] = signed
        return True

    def add_index(self, part: int, data: bytes) -> None:
        """Take the index blob of one part: every name is final then. Raises MessageError for a wrong one."""
        assert self.transition is not None
        place = self.transition.parts[part]
        entries = index_entries(data)
        if digest(data) != place.index.root or len(entries) != place.count:
            raise MessageError(f"index of attempt {short(self.attempt)} is not the one its transition names")
        self._name(place.first, entries)

    def _name(self, first: int, entries: list[tuple[bytes, int]]) -> None:
        if first + len(entries) > MAX_CHUNKS:
            raise MessageError(f"attempt {short(self.attempt)} has more than {MAX_CHUNKS} chunks")
        for ordinal, entry in enumerate(entries, first):
            if self.chunks.setdefault(ordinal, entry) != entry:
                raise MessageError(f"chunk {ordinal} of attempt {short(self.attempt)} has two names")
        if entries:
            self.named |= mask(first, first + len(entries) - 1)

    def take_unplaced(self) -> list[int]:
        """Ordinals named since the last call, as HAVE numbers them."""
        meta = ((1 << len(self.meta)) - 1) & ~self._placed.meta
        data = self.named & ~self._placed.data
        self._placed.meta |= meta
        self._placed.data |= data
        return [*(index + META_ORDINAL for index in iterate(meta)), *iterate(data)]

    def keep_only(self, has: Callable[[bytes], bool]) -> None:
        """Take every chunk that is not in the store any more for missing."""
        for index in iterate(self.have.meta):
            if not has(self.meta[index][0]):
                self.have.remove(index + META_ORDINAL)
        for ordinal in iterate(self.have.data):
            if not has(self.chunks[ordinal][0]):
                self.have.remove(ordinal)

    def entry(self, ordinal: int) -> tuple[bytes, int]:
        """(name, sealed size) of the chunk with this number."""
        return self.meta[ordinal - META_ORDINAL] if ordinal >= META_ORDINAL else self.chunks[ordinal]

    @property
    def named_meta(self) -> int:
        """Bitmap of all blob chunks."""
        return (1 << len(self.meta)) - 1

    def missing_meta(self) -> int:
        """Bitmap of blob chunks that are not here."""
        return self.named_meta & ~self.have.meta

    def lacks_layout(self) -> bool:
        """Whether any blob chunk of the layout is not here: they are the first ones."""
        of = self.transition or self.opening
        count = sum(len(part.layout.chunks) for part in of.parts) if of is not None else 0
        return of is None or bool(((1 << count) - 1) & ~self.have.meta)

    def missing_data(self) -> int:
        """Bitmap of named data chunks that are not here."""
        return self.named & ~self.have.data

    def unasked(self) -> ChunkSet:
        """What is neither here nor asked for."""
        return ChunkSet(self.missing_data() & ~self.asked.data, self.missing_meta() & ~self.asked.meta)

    def lacks(self, offered: ChunkSet) -> bool:
        """Whether something of what is offered is neither here nor asked for."""
        return bool(
            offered.data & self.named & ~self.have.data & ~self.asked.data
            or offered.meta & self.named_meta & ~self.have.meta & ~self.asked.meta
        )

    def expected(self) -> int | None:
        """Bitmap of all data chunks, or None while the transition record is not here."""
        return self._expected

    def complete(self) -> bool:
        """Whether every chunk, of data and of blobs, is here."""
        expected = self.expected()
        return expected is not None and not expected & ~self.have.data and not self.missing_meta()

    def missing_bytes(self) -> int:
        """Sealed bytes still to fetch. For a series without its index, an estimate from the transition record."""
        meta = sum(self.meta[index][1] for index in iterate(self.missing_meta()))
        if self.transition is None:
            return meta + sum(self.chunks[ordinal][1] for ordinal in iterate(self.missing_data()))
        total = sum(part.size for part in self.transition.parts)
        held = sum(self.chunks[ordinal][1] for ordinal in iterate(self.named & self.have.data))
        return meta + max(total - held, 0)

    def signed_pages(self) -> Iterator[bytes]:
        """Pages received so far, for a peer that joins in mid-publish."""
        return iter(self.pages.values())


def _all_of(transition: Transition) -> int:
    """Bitmap of all data chunks of a transition."""
    bitmap = 0
    for part in transition.parts:
        if part.count:
            bitmap |= mask(part.first, part.first + part.count - 1)
    return bitmap
