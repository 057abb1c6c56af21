"""A LocalService that keeps everything in memory, with real checkpoint directories under it.

It follows the Protocol in daemon/local/service.py, word for word, and nothing else: what the local API does is
tested against it, what the node does is tested with the node.
"""

import asyncio
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize

from patchswarm.daemon.lives import Lives
from patchswarm.daemon.local.errors import (
    LeaseGoneError,
    LoadInFullError,
    UnknownLeaseError,
    UnknownStreamError,
    UnknownVersionError,
    VersionNotReadyError,
)
from patchswarm.daemon.local.model import (
    HeadInfo,
    LeaseInfo,
    NodeStatus,
    PeerHead,
    PeerStatus,
    PublishProgress,
    PublishRequest,
    PublishResult,
    Readiness,
    StreamState,
    StreamStatus,
    VersionInfo,
    VersionLife,
)
from patchswarm.daemon.local.observing import ChunkMap, GroupChange, PatchContents, PatchInfo
from patchswarm.daemon.local.service import OpenDelta, OpenVersion
from patchswarm.protocol.elements import SAFETENSORS_KINDS, Kind
from patchswarm.protocol.ids import digest
from patchswarm.protocol.layout import File, Layout, Region, Role, check_layout

STREAM = "qwen"


def write_checkpoint(folder: Path, seed: int) -> None:
    """Two shards of awkward tensors, an empty file and side files, one of them in a subfolder."""
    rng = np.random.default_rng(seed)
    (folder / "tokenizer").mkdir(parents=True)
    first = {
        "model.embed/weight": ("bfloat16", [64, 33], rng.bytes(64 * 33 * 2)),
        "model.norm weight%2F": ("float32", [7], rng.bytes(28)),
        "scalar": ("float64", [], rng.bytes(8)),
        "empty": ("float16", [0, 4], b""),
        "twice": ("uint8", [3], bytes([seed, 1, 2])),
    }
    second = {
        "model.fp8": ("float8_e4m3fn", [16, 16], rng.bytes(256)),
        "packed": ("float4_e2m1fn_x2", [4, 3], rng.bytes(12)),
        "twice": ("uint8", [3], bytes([seed, 3, 4])),
    }
    for name, tensors, metadata in (("1", first, {"format": "pt"}), ("2", second, None)):
        buffers = {key: np.frombuffer(data, np.uint8) for key, (_, _, data) in tensors.items()}
        specs = {
            key: TensorSpec(dtype=dtype, shape=shape, data_ptr=buffers[key].ctypes.data, data_len=len(data))
            for key, (dtype, shape, data) in tensors.items()
        }
        (folder / f"model-{name}.safetensors").write_bytes(serialize(specs, metadata))
    (folder / "config.json").write_text(json.dumps({"seed": seed}))
    (folder / "empty.txt").touch()
    (folder / "tokenizer" / "ключ и замок.json").write_text("{}", encoding="utf-8")
    (folder / ".patchswarm-slot").write_text("hidden state that is not part of the version")


def layout_of(folder: Path) -> Layout:
    """The layout of what `write_checkpoint` wrote; files whose name starts with .patchswarm are not in it."""
    paths = sorted(
        str(Path(root, name).relative_to(folder))
        for root, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".patchswarm")
    )
    layout = Layout(tuple(File(path, tuple(_regions(folder / path))) for path in paths))
    check_layout(layout)
    return layout


def _regions(path: Path) -> list[Region]:
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return [Region(Role.BLOB, Kind.BYTES, len(data))] if data else []
    start = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    regions = [Region(Role.HEADER, Kind.BYTES, start)]
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = info["data_offsets"]
        kind = SAFETENSORS_KINDS[info["dtype"]]
        regions.append(Region(Role.TENSOR, kind, last - first, name, info["dtype"], tuple(info["shape"])))
    return regions


@dataclass
class HeldLease:
    info: LeaseInfo
    gone: bool = False


class MemoryService:
    """One stream whose versions are directories below `root`. Commit with `commit`, publish with `publishing`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[int, OpenVersion] = {}
        self.current: int | None = None
        self.epoch = 1
        self.leases: dict[str, HeldLease] = {}
        self.hosts: set[str] = set()
        self.told = Lives(lambda *_: None)
        self.on_the_way: list[ChunkMap] = []
        self.renewals: list[str] = []
        self.open_readers = 0
        self.waiters = 0
        self.reasons: list[str] = []
        self.accepted: list[tuple[str, bytes]] = []
        self.deltas: dict[tuple[int, int], bytes] = {}
        self.closed = False
        self.changed = asyncio.Condition()
        self.publishing: Callable[
            [PublishRequest, Callable[[PublishProgress], None]], asyncio.Future[PublishResult]
        ] = _no_publishing

    async def commit(
        self, version: int, *, proven: bool = True, more: dict[str, bytes] | None = None, label: str | None = None
    ) -> None:
        """Commit a version with `write_checkpoint`'s files and `more`."""
        path = self.root / STREAM / f"v{version}"
        write_checkpoint(path, version)
        for name, data in (more or {}).items():
            (path / name).write_bytes(data)
        layout = layout_of(path)
        info = VersionInfo(
            stream=STREAM,
            epoch=self.epoch,
            version=version,
            label=f"step {version}" if label is None else label,
            manifest=digest(layout.encode() + bytes([version, self.epoch])).hex(),
            size_bytes=layout.size,
            proven=proven,
            path=str(path),
            committed_at=1.5e9 + version,
        )
        async with self.changed:
            self.known[version] = OpenVersion(path, layout, info)
            self.current = version
            self.changed.notify_all()

    async def changed_once(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever something happens here."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def _happened(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def streams(self) -> list[StreamStatus]:
        return [self.status(STREAM)]

    def status(self, stream: str) -> StreamStatus:
        self._check(stream)
        current = None if self.current is None else self.known[self.current].info
        head = None if current is None else HeadInfo(epoch=1, version=current.version, manifest=current.manifest)
        state = StreamState.WAITING if current is None else StreamState.CURRENT
        return StreamStatus(
            stream=stream, state=state, current=current, head=head, proven=bool(current and current.proven)
        )

    async def versions(self, stream: str) -> list[VersionInfo]:
        self._check(stream)
        return [self.known[version].info for version in sorted(self.known, reverse=True)]

    async def wait(
        self, stream: str, at_least: int, timeout_s: float, *, epoch: int | None = None
    ) -> VersionInfo | None:
        self._check(stream)

        def reached() -> bool:
            if self.current is None:
                return False
            if epoch is not None:
                return (self.epoch, self.current) >= (epoch, at_least)
            return self.current >= at_least

        async with self.changed:
            self.waiters += 1
            self.changed.notify_all()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.changed.wait_for(reached)
            except TimeoutError:
                return None
            finally:
                self.waiters -= 1
                self.changed.notify_all()
            assert self.current is not None
            return self.known[self.current].info

    async def publish(
        self, stream: str, request: PublishRequest, progress: Callable[[PublishProgress], None]
    ) -> PublishResult:
        self._check(stream)
        return await self.publishing(request, progress)

    async def lease(self, stream: str, version: int | None, ttl_s: float, group: Sequence[str] = ()) -> LeaseInfo:
        info = self._find(stream, version).info
        behind = [host for host in group if host not in self.hosts]
        if behind:
            raise VersionNotReadyError(f"version {info.version} of {stream} is not on all hosts: {behind[0]}")
        lease = LeaseInfo(
            lease=f"lease-{len(self.leases) + 1}",
            stream=stream,
            epoch=info.epoch,
            version=info.version,
            label=info.label,
            manifest=info.manifest,
            size_bytes=info.size_bytes,
            path=str(info.path),
            proven=info.proven,
            expires_at=1.6e9 + ttl_s,
        )
        self.leases[lease.lease] = HeldLease(lease)
        return lease

    async def renew(self, stream: str, lease: str, ttl_s: float) -> LeaseInfo:
        held = self._held(stream, lease)
        self.renewals.append(lease)
        await self._happened()
        return held.info

    async def release(self, stream: str, lease: str) -> None:
        held = self._held(stream, lease)
        held.gone = True

    @asynccontextmanager
    async def open_version(self, stream: str, version: int | None):
        opened = self._find(stream, version)
        self.open_readers += 1
        try:
            yield opened
        finally:
            self.open_readers -= 1
            await self._happened()

    def peers(self) -> list[PeerStatus]:
        head = PeerHead(stream=STREAM, epoch=1, version=3)
        return [
            PeerStatus(node="ab" * 32, site="eu/b", addresses=["127.0.0.1:1"], connected=True, rtt_ms=0.2, heads=[head])
        ]

    def node(self) -> NodeStatus:
        return NodeStatus(
            node="cd" * 32,
            site="eu/b",
            certificate_ends_at=2e9,
            problems=["its clock is slow"],
            slot_dir=str(self.root),
        )

    async def accept(self, kind: str, data: bytes) -> bool:
        self.accepted.append((kind, data))
        return len(self.accepted) == 1

    def lives(self, stream: str) -> list[VersionLife]:
        self._check(stream)
        return self.told.of(stream)

    def listening(self, stream: str):
        self._check(stream)
        return self.told.listening(stream)

    def patches(self, stream: str) -> list[PatchInfo]:
        self._check(stream)
        return [
            PatchInfo(epoch=1, version=v, kind="step", chunks=2, size_bytes=900 + v, full_bytes=100_000, here=True)
            for v in sorted(self.known, reverse=True)
        ]

    async def patch(self, stream: str, version: int) -> PatchContents:
        known = {info.version: info for info in self.patches(stream)}
        if version not in known:
            raise UnknownVersionError(f"no patch to version {version} of {stream} is complete on this node")
        groups = [GroupChange(group="layers.*.weight", elements=1000, changed=8)]
        return PatchContents(patch=known[version], groups=groups)

    def fetching(self, stream: str) -> list[ChunkMap]:
        self._check(stream)
        return self.on_the_way

    def metrics(self) -> bytes:
        return b"patchswarm_peers 1.0\n"

    def ready(self) -> Readiness:
        return Readiness(ready=not self.reasons, reasons=self.reasons)

    @asynccontextmanager
    async def open_delta(self, stream: str, start: int, end: int | None):
        """A delta whose bytes a test put into `deltas`, by the two versions."""
        after = self._find(stream, end).info
        before = self._find(stream, start).info
        content = self.deltas.get((start, after.version))
        if content is None:
            raise LoadInFullError(f"a tensor of version {start} is gone: load in full")
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            yield OpenDelta(
                descriptor=file.fileno(),
                size_bytes=len(content),
                start=start,
                start_manifest=before.manifest,
                epoch=after.epoch,
                version=after.version,
                manifest=after.manifest,
                proven=after.proven,
            )

    def close(self) -> None:
        self.closed = True

    def _check(self, stream: str) -> None:
        if stream != STREAM:
            raise UnknownStreamError(f"this node does not follow stream {stream!r}")

    def _find(self, stream: str, version: int | None) -> OpenVersion:
        self._check(stream)
        version = self.current if version is None else version
        if version not in self.known:
            raise UnknownVersionError(f"version {version} of {stream!r} is not held here")
        return self.known[version]

    def _held(self, stream: str, lease: str) -> HeldLease:
        self._check(stream)
        if lease not in self.leases:
            raise UnknownLeaseError(f"no lease {lease!r}")
        if self.leases[lease].gone:
            raise LeaseGoneError(f"lease {lease!r} is gone; take a new one")
        return self.leases[lease]


async def _no_publishing(request: PublishRequest, progress: Callable[[PublishProgress], None]) -> PublishResult:
    raise AssertionError(f"no publish was expected, but {request} came with {progress}")
