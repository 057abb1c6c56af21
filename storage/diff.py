"""One pass over a new checkpoint: read, hash, compare, encode, check by decoding, seal, store.

Every byte of the foreign files is read once. Each job takes some consecutive 4 MiB blocks; its chunks are applied
to the head's own spare slot (or, for a transition between versions that exist already, in memory) and the result is
compared with what was read, so a chunk leaves only when it has been seen to lead there. A block of the parent that is
not what its digest says is sent whole; a spare in which a bit has flipped gets the parent's bytes and another try.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from blake3 import blake3

from ..protocol.codec.chunk import CodecOptions, EncodedChunk, Span, encode_spans
from ..protocol.elements import Kind, width_bytes
from ..protocol.ids import digest
from ..protocol.layout import BLOCK_BYTES, Layout, match_regions
from .building import Building
from .chunks import ChunkStore
from .errors import StorageError
from .mapped import Bytes, RegionTable
from .scratch import STRADDLE, Scratch
from .trust import CHECK_BYTES, Checker, Parent, Trust
from .verify import DIGEST_BYTES, PIECE_BYTES

MAX_CONTENTS: Final = 4 * 1024 * 1024
"""Most bytes of contents in one chunk."""

MIN_PIECE_BYTES: Final = 32 * 1024
_LOWEST: Final = 19


class DiffStoppedError(StorageError):
    """The pass was told to stop."""


class NewBytes(Protocol):
    """The version to encode: a checkpoint of the trainer, or a slot that is held."""

    @property
    def layout(self) -> Layout:
        """Its layout."""

    def read_into(self, file: int, offset: int, out: Bytes) -> None:
        """Fill `out`, contiguous uint8, with bytes of a file."""

    def check_unchanged(self) -> None:
        """Raise SourceChangedError unless the files are still what they were."""


@dataclass(frozen=True, slots=True)
class Made:
    """One sealed chunk, in the store."""

    ordinal: int
    name: bytes
    size: int


@dataclass(slots=True)
class DiffResult:
    """What a pass found. `seconds` are summed over threads, by stage."""

    digests: bytearray
    checks: bytearray = field(default_factory=bytearray)
    """Of every block, for the pass to which this version is the parent."""
    elements: int = 0
    changed: int = 0
    chunks: list[Made] = field(default_factory=list)
    distrusted_blocks: int = 0
    """Blocks of the parent that did not match their own digest, and were sent whole."""
    mended_jobs: int = 0
    """Runs of blocks in which the spare slot did not hold the parent's bytes, and got them."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Block:
    number: int
    file: int
    offset: int
    size: int


class Diff:
    """Compares `source` with `parent` (None: a full transition) into sealed chunks and the slot in `building`.

    Without a building the chunks are checked in memory. With `nice` the threads have the lowest priority.

    `seal(ordinal, contents)` gives the sealed bytes. `made` is called from worker threads for each chunk once it is
    stored and checked, `advanced` with the bytes of each finished job. Set `stop` to end the pass early.
    """

    def __init__(
        self,
        source: NewBytes,
        parent: Parent | None,
        building: Building | None,
        store: ChunkStore,
        seal: Callable[[int, bytes], bytes],
        made: Callable[[Made], None],
        advanced: Callable[[int], None],
        *,
        codec: CodecOptions,
        job_bytes: int,
        chunk_bytes: int,
        threads: int,
        nice: bool = False,
    ) -> None:
        self.stop = threading.Event()
        self._source = source
        self._building = building
        self._store = store
        self._seal = seal
        self._made = made
        self._advanced = advanced
        self._codec = codec
        # Contents of a whole region hardly shrink, so there the input is cut as the chunks are to be.
        self._piece_bytes = min(max(chunk_bytes, MIN_PIECE_BYTES) // STRADDLE * STRADDLE, BLOCK_BYTES)
        self._chunk_bytes = min(max(chunk_bytes, MIN_PIECE_BYTES), MAX_CONTENTS)
        self._job_blocks = max(1, job_bytes // BLOCK_BYTES)
        self._threads = threads
        self._nice = nice
        self._layout: Layout = source.layout
        self._table = RegionTable(source.layout)
        self._kinds = [region.kind for file in source.layout.files for region in file.regions]
        self._match = match_regions(parent.files.layout, source.layout) if parent else None
        self._trust = Trust(parent) if parent else None
        self._rooms = threading.local()
        self._lock = threading.Lock()
        self._ordinals = itertools.count()
        blocks = sum(1 for _ in source.layout.blocks())
        self._result = DiffResult(bytearray(DIGEST_BYTES * blocks), bytearray(CHECK_BYTES * blocks))

    def run(self) -> DiffResult:
        """Do the whole pass. Raises SourceChangedError, NoSpaceError, DiffStoppedError and what the store raises."""
        blocks = (_Block(number, *block) for number, block in enumerate(self._layout.blocks()))
        with ThreadPoolExecutor(self._threads, "diff", _be_nice if self._nice else None) as pool:
            running: set[Future[None]] = set()
            try:
                while job := list(itertools.islice(blocks, self._job_blocks)):
                    running.add(pool.submit(self._job, job))
                    if len(running) > self._threads:
                        running = _reap(running)
                while running:
                    running = _reap(running)
            except BaseException:
                self.stop.set()
                for future in running:
                    future.cancel()
                raise
        self._source.check_unchanged()
        self._result.distrusted_blocks = self._trust.broken_blocks if self._trust else 0
        self._result.chunks.sort(key=lambda made: made.ordinal)
        return self._result

    def _job(self, blocks: Sequence[_Block]) -> None:
        if self.stop.is_set():
            raise DiffStoppedError("the publish was stopped")
        clock = _Clock()
        read = []
        for block, room in zip(blocks, self._room(), strict=False):
            read.append(self._read(block, room, clock))
        spans = [span for block, data in zip(blocks, read, strict=True) for span in self._spans(block, data)]
        into = self._building or self._scratch(blocks, read, spans)
        clock.lap("check parent")
        chunks = list(encode_spans(spans, self._codec, self._chunk_bytes))
        clock.lap("encode")
        if not self._lead_there(chunks, spans, into, clock):
            for span in spans:
                if span.old is not None:
                    into.fill(span.region, span.offset, span.old)
            if not self._lead_there(chunks, spans, into, clock):
                path = self._layout.files[blocks[0].file].path
                raise StorageError(f"{path}: a chunk does not decode to what was read")
            with self._lock:
                self._result.mended_jobs += 1
        for chunk in chunks:
            self._keep(chunk, clock)
        with self._lock:
            for stage, seconds in clock.laps.items():
                self._result.seconds[stage] = self._result.seconds.get(stage, 0.0) + seconds
            self._result.elements += sum(_elements(span) for span in spans)
        self._advanced(sum(block.size for block in blocks))

    def _room(self) -> Sequence[Bytes]:
        """Memory for the blocks of one job, of this thread alone: what is mapped once is not cleared for each job."""
        if not hasattr(self._rooms, "blocks"):
            self._rooms.blocks = [np.empty(BLOCK_BYTES + STRADDLE, np.uint8) for _ in range(self._job_blocks)]
        found: Sequence[Bytes] = self._rooms.blocks
        return found

    def _scratch(self, blocks: Sequence[_Block], read: Sequence[Bytes], spans: Sequence[Span]) -> Scratch:
        scratch = Scratch([(block.file, block.offset, block.size) for block in blocks], self._table)
        for block, data in zip(blocks, read, strict=True):
            scratch.begin(block.file, block.offset, data)
        for span in spans:
            if span.old is None:
                scratch.fill(span.region, span.offset, np.zeros(len(span.new), np.uint8))
            else:
                scratch.fill(span.region, span.offset, span.old)
        return scratch

    def _lead_there(
        self, chunks: Sequence[EncodedChunk], spans: Sequence[Span], into: Building | Scratch, clock: _Clock
    ) -> bool:
        """Whether the chunks, applied, lead to the new bytes; each span is compared, so that no job needs another."""
        fits = all(into.try_apply(chunk.data) for chunk in chunks)
        clock.lap("apply")
        leads = fits and all(_equal(into.region(span.region, span.offset, len(span.new)), span.new) for span in spans)
        clock.lap("compare")
        return leads

    def _keep(self, chunk: EncodedChunk, clock: _Clock) -> None:
        with self._lock:
            ordinal = next(self._ordinals)
        sealed = self._seal(ordinal, chunk.data)
        name = digest(sealed)
        clock.lap("seal")
        self._store.put(name, sealed)
        made = Made(ordinal, name, len(sealed))
        with self._lock:
            self._result.changed += chunk.changed
            self._result.chunks.append(made)
        clock.lap("store")
        self._made(made)

    @property
    def names(self) -> list[bytes]:
        """Chunks stored so far: what a publish that is given up leaves behind."""
        with self._lock:
            return [made.name for made in self._result.chunks]

    def _read(self, block: _Block, room: Bytes, clock: _Clock) -> Bytes:
        """The block, and up to 8 bytes more, so that an element that straddles its end is whole.

        What is hashed was just read, and is in the core's own cache still.
        """
        size = min(block.size + STRADDLE, self._layout.files[block.file].size - block.offset)
        hasher, checker = blake3(), Checker()
        for at in range(0, size, PIECE_BYTES):
            piece = room[at : min(at + PIECE_BYTES, size)]
            self._source.read_into(block.file, block.offset + at, piece)
            clock.lap("read")
            own = piece[: block.size - at].data
            hasher.update(own)
            checker.update(own)
            clock.lap("hash")
        at = block.number * DIGEST_BYTES
        self._result.digests[at : at + DIGEST_BYTES] = hasher.digest()
        at = block.number * CHECK_BYTES
        self._result.checks[at : at + CHECK_BYTES] = checker.digest()
        return room[:size]

    def _spans(self, block: _Block, data: Bytes) -> Iterator[Span]:
        """The regions' elements that begin in `block`, beside the parent's bytes unless those are not to be trusted."""
        for region in self._regions(block):
            kind = self._kinds[region]
            width = width_bytes(kind)
            start, whole_size = int(self._table.offset[region]), int(self._table.size[region])
            first = -(-max(block.offset - start, 0) // width) * width
            last = min(-(-(block.offset + block.size - start) // width) * width, whole_size)
            if first >= last:
                continue
            at = start + first - block.offset
            old = self._old(region, first, last - first)
            if old is not None:
                yield Span(region, kind, first, old, data[at : at + last - first])
                continue
            for piece in range(first, last, self._piece_bytes):
                size = min(self._piece_bytes, last - piece)
                begin = start + piece - block.offset
                yield Span(region, kind, piece, None, data[begin : begin + size])

    def _regions(self, block: _Block) -> range:
        """Numbers of the regions that share bytes with the block."""
        low, high = np.searchsorted(self._table.file, [block.file, block.file + 1])
        starts = self._table.offset[low:high]
        ends = starts + self._table.size[low:high]
        first = int(np.searchsorted(ends, block.offset, side="right"))
        last = int(np.searchsorted(starts, block.offset + block.size, side="left"))
        return range(int(low) + first, int(low) + last)

    def _old(self, region: int, offset: int, size: int) -> Bytes | None:
        if self._trust is None or self._match is None or self._match[region] < 0:
            return None
        files = self._trust.parent.files
        file, at = files.table.place(self._match[region], offset, size)
        return files.view(file, at, size) if self._trust.holds(file, at, size) else None


def _equal(one: Bytes, other: Bytes) -> bool:
    """Whether two arrays of the same length hold the same bytes; eight at a time, which leaves less to write down."""
    whole = len(one) // 8 * 8
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and np.array_equal(
        one[whole:], other[whole:]
    )


def _be_nice() -> None:
    """Let the calling thread run only when nothing else wants to: priorities are per thread on Linux."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


class _Clock:
    """Splits a job's time among its stages."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now


def _elements(span: Span) -> int:
    packed = 2 if span.kind in (Kind.F4, Kind.I4) else 1
    return len(span.new) // width_bytes(span.kind) * packed


def _reap(running: set[Future[None]]) -> set[Future[None]]:
    """Wait for at least one job; raises what it raised. Returns those that still run."""
    done, pending = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return pending
