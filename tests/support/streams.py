"""Small checkpoints on disk, the transitions between them, and slots that follow: shared by the storage tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from patchswarm.protocol.codec.chunk import CodecOptions, Span, encode_spans
from patchswarm.protocol.ids import digest
from patchswarm.protocol.layout import match_regions
from patchswarm.storage.building import Building
from patchswarm.storage.catalog import Catalog
from patchswarm.storage.checkpoint import Source, scan
from patchswarm.storage.files import Files
from patchswarm.storage.mapped import RegionTable
from patchswarm.storage.slots import Slot, StreamSlots

CHUNK_BYTES = 32 * 1024
Tensor = tuple[str, tuple[int, ...], bytes]


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file with tensors given as name to (dtype, shape, data), in that order."""
    header: dict[str, object] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def write_tree(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Put these files into `directory`."""
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return directory


def read_tree(directory: Path) -> dict[str, bytes]:
    """Path to contents of every file that belongs to the checkpoint in `directory`."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".patchswarm")
    }


def weights(seed: int, steps: int = 0, share: float = 0.02, elements: int = 20_000) -> dict[str, np.ndarray]:
    """Tensors of a small BF16 model, moved `steps` times by one unit in `share` of the places."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name in ("embed.weight", "layers.0.weight", "layers.1.weight"):
        values = (rng.standard_normal(elements).astype(np.float32) * 0.02).view(np.uint32) >> 16
        tensors[name] = values.astype(np.uint16)
    for step in range(steps):
        moves = np.random.default_rng((seed, step))
        for values in tensors.values():
            values[moves.random(elements) < share] += 1
    return tensors


def model(seed: int, steps: int = 0, share: float = 0.02, elements: int = 20_000) -> dict[str, bytes]:
    """Files of a small model in two shards, with side files."""
    tensors = {
        name: ("BF16", (elements,), values.tobytes()) for name, values in weights(seed, steps, share, elements).items()
    }
    return {
        "config.json": b'{"hidden_size": 16}',
        "model-00001.safetensors": safetensors_bytes(dict(list(tensors.items())[:2])),
        "model-00002.safetensors": safetensors_bytes(dict(list(tensors.items())[2:])),
        "tokenizer/vocab.txt": b"a\nb\n",
    }


def resharded(seed: int, steps: int = 0, elements: int = 20_000) -> dict[str, bytes]:
    """The same model with a tensor dropped, one reshaped, one new, all in one file; a folder became a file."""
    found = weights(seed, steps, elements=elements)
    return {
        "config.json": b'{"hidden_size": 17, "new": true}',
        "other/weights.safetensors": safetensors_bytes(
            {
                "layers.1.weight": ("BF16", (elements,), found["layers.1.weight"].tobytes()),
                "embed.weight": ("BF16", (elements // 2, 2), found["embed.weight"].tobytes()),
                "fresh": ("F32", (3,), b"\x01" * 12),
            }
        ),
        "tokenizer": b"now a file",
    }


def transition(old: Source | None, new: Source) -> list[bytes]:
    """Contents of the chunks that lead from one checkpoint (or from nothing) to another."""
    table = RegionTable(new.layout)
    before = RegionTable(old.layout) if old else None
    match = match_regions(old.layout, new.layout) if old else [-1] * len(table.size)
    spans = []
    for placed in new.layout.placed():
        was, size = match[placed.number], placed.region.size
        data = new.read(placed.file, placed.offset, size)
        base = old.read(int(before.file[was]), int(before.offset[was]), size) if old and before and was >= 0 else None
        for at in range(0, size, CHUNK_BYTES):
            part = slice(at, at + CHUNK_BYTES)
            spans.append(Span(placed.number, placed.region.kind, at, None if base is None else base[part], data[part]))
    # One call per few spans, so that even a small model makes several chunks.
    return [
        chunk.data
        for at in range(0, len(spans), 3)
        for chunk in encode_spans(spans[at : at + 3], CodecOptions(), CHUNK_BYTES)
    ]


def manifest_of(version: int) -> bytes:
    """A made-up manifest digest for a version."""
    return digest(b"manifest %d" % version)


class Stream:
    """A made-up stream: versions as directories, and slots that follow them."""

    def __init__(self, root: Path, count: int = 2, files: Files | None = None, *, recover: bool = True) -> None:
        self.root = root
        self.recovers = recover
        self.count = count
        self.files = files
        self.trees: dict[int, dict[str, bytes]] = {}
        self.catalog = Catalog(root / "home" / "catalog.sqlite", files)
        self.slots = self._slots()

    def _slots(self) -> StreamSlots:
        slots = StreamSlots(self.root / "slots" / "qwen", "qwen", self.catalog, self.files, count=self.count, threads=2)
        slots.open()
        if self.recovers:
            slots.recover()
        return slots

    def reopen(self) -> StreamSlots:
        """The slots as a daemon that starts again finds them."""
        self.catalog.close()
        self.catalog = Catalog(self.root / "home" / "catalog.sqlite", self.files)
        self.slots = self._slots()
        return self.slots

    def add(self, version: int, tree: dict[str, bytes]) -> Source:
        """Write a version's checkpoint directory as a trainer would."""
        self.trees[version] = tree
        return scan(write_tree(self.root / "trainer" / str(version), tree))

    def source(self, version: int) -> Source:
        """The trainer's directory of a version."""
        return scan(self.root / "trainer" / str(version))

    def chunks(self, old: int | None, new: int) -> list[bytes]:
        """The transition between two versions."""
        with ExitStack() as stack:
            before = None if old is None else stack.enter_context(self.source(old))
            return transition(before, stack.enter_context(self.source(new)))

    def build(self, old: int | None, new: int) -> Building:
        """A building that has received the whole transition between two versions."""
        source = None if old is None else self.slots.find(manifest_of(old))
        building = self.slots.begin(self.source(new).layout, source)
        for chunk in self.chunks(old, new):
            building.apply(chunk)
        return building

    def commit(self, old: int | None, new: int, *, proven: bool = True) -> Slot:
        """Build a version and make it current."""
        return self.build(old, new).commit(1, new, manifest_of(new), f"step {new}", proven=proven)

    def twin(self, old: int, new: int) -> Slot:
        """Bring the slot behind to a committed version."""
        return self.build(old, new).commit_twin(1, new, manifest_of(new), f"step {new}", proven=True)

    def twin_of(self, version: int) -> Slot:
        """Copy a committed version into another slot."""
        building = self.slots.begin(self.source(version).layout, self.source(version))
        return building.commit_twin(1, version, manifest_of(version), f"step {version}", proven=True)

    def holds(self, slot: Slot | None, version: int) -> bool:
        """Whether a slot has exactly the trainer's files."""
        return slot is not None and read_tree(slot.path) == self.trees[version]
