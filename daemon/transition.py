"""Reading a transition from the chunk store: its lists, and its chunks opened one by one. Blocking: for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..protocol.layout import Layout, decode_layout
from ..protocol.manifest import BlobRef, Opening, Transition
from ..protocol.seal import ChunkSealer, index_entries, open_blob
from ..storage.chunks import ChunkStore


def read_blob(store: ChunkStore, ref: BlobRef) -> bytes:
    """The list that `ref` names. Raises ChunkMissingError, ChunkCorruptError, SealError."""
    return open_blob(ref, [store.get(name) for name, _ in ref.chunks])


def read_layout(store: ChunkStore, transition: Opening | Transition) -> Layout:
    """The layout that a transition leads to: that of all its parts, in order. Raises LayoutError too."""
    layouts = [decode_layout(read_blob(store, part.layout)) for part in transition.parts]
    return layouts[0] if len(layouts) == 1 else Layout(tuple(file for each in layouts for file in each.files))


def read_digests(store: ChunkStore, transition: Transition) -> bytes:
    """The digest table of the version that a transition leads to: 32 bytes for each block."""
    return b"".join(read_blob(store, part.digests) for part in transition.parts)


def chunk_names(store: ChunkStore, transition: Transition) -> list[bytes]:
    """Names of every chunk of a transition, its lists' included."""
    names = [name for part in transition.parts for ref in part.blobs for name, _ in ref.chunks]
    for part in transition.parts:
        names += [name for name, _ in index_entries(read_blob(store, part.index))]
    return names


def chunk_readers(store: ChunkStore, transition: Transition, applied: int = 0) -> Iterator[Callable[[], bytes]]:
    """For each chunk a call that gives its opened contents. Raises SealError for a chunk that belongs elsewhere.

    Chunks whose ordinal is in the bitmap `applied` are left out.
    """
    for number, part in enumerate(transition.parts):
        sealer = ChunkSealer(transition, number)
        for ordinal, (name, _) in enumerate(index_entries(read_blob(store, part.index)), part.first):
            if not applied >> ordinal & 1:
                yield _reader(store, sealer, ordinal, name)


def _reader(store: ChunkStore, sealer: ChunkSealer, ordinal: int, name: bytes) -> Callable[[], bytes]:
    return lambda: sealer.open(ordinal, store.get(name))
