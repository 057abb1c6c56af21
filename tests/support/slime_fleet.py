"""slime's trainer and the hosts that pull from it, written from the documented format alone.

They share no code with the project: what it writes must be read by these, and what these write it must read.
"""

import json
import shutil
import zlib
from pathlib import Path

import blake3
import numpy as np
import xxhash
import zstandard

CHECKSUMS = {
    "xxh3-128": xxhash.xxh3_128_hexdigest,
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
}


def read_file(path):
    """(metadata, {name: (dtype, shape, first byte, last byte)}, the file's bytes)."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    places = {
        name: (each["dtype"], each["shape"], start + each["data_offsets"][0], start + each["data_offsets"][1])
        for name, each in header.items()
    }
    return metadata, places, data


def write_file(path, blobs, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, blob in blobs.items():
        header[name] = {"dtype": "U8", "shape": [len(blob)], "data_offsets": [at, at + len(blob)]}
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs.values()))


class Trainer:
    """Publishes the changes of tensors, given as bytes by name, from a few ranks."""

    def __init__(self, root, tensors, *, encoding="xor", checksum="xxh3-128", ranks=2):
        self.ranks = ranks
        self.root = root
        self.encoding = encoding
        self.checksum = checksum
        self.version = 0
        self.snapshot = {name: bytes(data) for name, data in tensors.items()}

    def publish(self, tensors):
        """Write the next folder: the ranks' files first, the index last."""
        self.version += 1
        folder = self.root / f"weight_v{self.version:06d}"
        folder.mkdir(parents=True)
        changed = {name: data for name, data in tensors.items() if data != self.snapshot[name]}
        ranks = [part for rank in range(self.ranks) if (part := list(changed)[rank :: self.ranks])]
        files = {}
        for number, names in enumerate(ranks):
            file = f"model-{number:05d}-of-{len(ranks):05d}.safetensors"
            blobs = {name: self.encode(self.snapshot[name], changed[name]) for name in names}
            write_file(folder / file, blobs, {name: CHECKSUMS[self.checksum](changed[name]) for name in names})
            files |= dict.fromkeys(names, file)
        metadata = {
            "version": f"{self.version:06d}",
            "base_version": f"{self.version - 1:06d}",
            "delta_encoding": self.encoding,
            "compression_format": "zstd",
            "checksum_format": self.checksum,
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": files}))
        self.snapshot = dict(tensors)
        return folder

    def encode(self, old, new):
        old, new = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
        if self.encoding == "xor":
            plain = (old ^ new).tobytes()
        else:
            places = np.flatnonzero(old != new)
            plain = len(places).to_bytes(4, "little") + places.astype("<u4").tobytes() + new[places].tobytes()
        return zstandard.ZstdCompressor(level=1).compress(plain)


class Host:
    """A host whose engine is asked to pull: it keeps a checkpoint of its own and applies what is published."""

    def __init__(self, folder: Path, base: Path):
        self.folder = folder
        self.applied = 0
        shutil.copytree(base, folder)

    def pull(self, source, target):
        start = target
        while start > self.applied and self._metadata(source, start) is not None:
            start -= 1
        if start > self.applied:  # a full checkpoint: it replaces everything
            shutil.rmtree(self.folder)
            shutil.copytree(source / f"weight_v{start:06d}", self.folder)
            self.applied = start
        for number in range(self.applied + 1, target + 1):
            self._apply(source / f"weight_v{number:06d}", self._metadata(source, number))

    def _metadata(self, source, number):
        folder = source / f"weight_v{number:06d}"
        if not folder.is_dir():
            raise FileNotFoundError(f"published weight version missing: {folder}")
        index = folder / "model.safetensors.index.json"
        metadata = json.loads(index.read_text()).get("metadata", {}) if index.exists() else {}
        return metadata if "delta_encoding" in metadata else None

    def _apply(self, folder, metadata):
        if int(metadata["base_version"]) != self.applied:
            raise RuntimeError(f"out-of-order delta: local at {self.applied}, builds on {metadata['base_version']}")
        assert metadata["compression_format"] == "zstd"
        where = {name: path for path in self.folder.glob("*.safetensors") for name in read_file(path)[1]}
        for file in sorted(folder.glob("*.safetensors")):
            checksums, places, data = read_file(file)
            for name, (_, _, first, last) in places.items():
                plain = np.frombuffer(
                    zstandard.ZstdDecompressor().decompressobj().decompress(data[first:last]), np.uint8
                )
                _, own, whole = read_file(where[name])
                region = np.frombuffer(whole[own[name][2] : own[name][3]], np.uint8).copy()
                if metadata["delta_encoding"] == "xor":
                    region ^= plain
                else:
                    count = int.from_bytes(plain[:4].tobytes(), "little")
                    region[plain[4 : 4 + 4 * count].view("<u4")] = plain[4 + 4 * count :]
                if CHECKSUMS[metadata["checksum_format"]](region.tobytes()) != checksums[name]:
                    raise RuntimeError(f"checksum mismatch: {name}")
                with where[name].open("r+b") as target:
                    target.seek(own[name][2])
                    target.write(region.tobytes())
        self.applied = int(metadata["version"])
