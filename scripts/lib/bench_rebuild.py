"""The rebuild benchmark: one made-up BF16 model on tmpfs, stepped by a made-up trainer, through the real storage."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from local_fleet import termination_as_exit
from rich.console import Console
from rich.table import Table

from patchswarm.protocol.codec.chunk import CodecOptions
from patchswarm.protocol.ids import digest
from patchswarm.protocol.layout import BLOCK_BYTES, Layout
from patchswarm.storage.building import Building
from patchswarm.storage.catalog import Catalog
from patchswarm.storage.checkpoint import scan
from patchswarm.storage.chunks import ChunkStore
from patchswarm.storage.diff import Diff, DiffResult
from patchswarm.storage.slots import StreamSlots
from patchswarm.storage.trust import Parent

SHARDS = 8
STREAM = "bench"
MEMORY_LIMIT_MIB = 512
REPEATS = 3
CATCH_UP = (1, 5, 20)
BLOCKS_PER_CHUNK = 4


@dataclass
class Row:
    """One measured number. `target` is a bound in the direction of `better`, None for a number that only informs."""

    name: str
    value: float
    unit: str
    target: float | None = None
    better: str = "more"

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "more" else self.value <= self.target


class Trainer:
    """A checkpoint of `size` bytes in BF16 whose values move by one unit in the last place."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self.size = size
        directory.mkdir(parents=True)
        elements = size // 2 // SHARDS
        for shard in range(SHARDS):
            rng = np.random.default_rng(shard)
            entry = {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}
            header = json.dumps({f"layers.{shard}.weight": entry}).encode()
            header += b" " * (-len(header) % 8)
            with (directory / f"model-{shard:05}.safetensors").open("wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                for at in range(0, elements, 1 << 22):
                    values = rng.standard_normal(min(1 << 22, elements - at), dtype=np.float32) * np.float32(0.02)
                    file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())

    def step(self, share: float, seed: int) -> None:
        """Move `share` of all values."""
        for shard, path in enumerate(sorted(self.directory.iterdir())):
            rng = np.random.default_rng((seed, shard))
            elements = self.size // 2 // SHARDS
            weights = np.memmap(path, np.uint16, "r+", offset=path.stat().st_size - 2 * elements)
            for at in range(0, elements, 1 << 22):
                part = weights[at : at + (1 << 22)]
                where = np.flatnonzero(rng.random(len(part), dtype=np.float32) < share)
                part[where] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(where))


class Node:
    """Slots, a chunk store and a catalog below one directory."""

    def __init__(self, root: Path, threads: int, slot_dir: Path | None = None) -> None:
        self.catalog = Catalog(root / "home" / "catalog.sqlite")
        self.store = ChunkStore(root / "home" / "chunks")
        self.slots = StreamSlots((slot_dir or root / "slots") / STREAM, STREAM, self.catalog, threads=threads)
        self.slots.open()

    def publish(self, trainer: Trainer, version: int, threads: int) -> tuple[float, list[bytes], bytes]:
        """Publish what the trainer has: seconds, the chunks' contents, the digest table."""
        contents: dict[int, bytes] = {}

        def seal(ordinal: int, data: bytes) -> bytes:
            contents[ordinal] = data
            return data

        with scan(trainer.directory) as source:
            current = self.slots.current()
            start = time.perf_counter()
            building = self.slots.begin(source.layout, current)

            def run(parent: Parent | None) -> DiffResult:
                diff = Diff(
                    source,
                    parent,
                    building,
                    self.store,
                    seal,
                    lambda _: None,
                    lambda _: None,
                    codec=CodecOptions(),
                    job_bytes=BLOCKS_PER_CHUNK * BLOCK_BYTES,
                    chunk_bytes=BLOCK_BYTES,
                    threads=threads,
                )
                return diff.run()

            if current is None:
                found = run(None)
            else:
                with self.slots.hold(current) as files:
                    found = run(Parent(files, self.digests, self._checks))
            building.commit(1, version, manifest(version), "", proven=True)
            seconds = time.perf_counter() - start
        self.digests, self._checks = bytes(found.digests), bytes(found.checks)
        for name in self.store.names():
            self.store.remove(name)
        return seconds, [contents[ordinal] for ordinal in sorted(contents)], self.digests

    digests = b""
    _checks = b""

    def twin(self, old: int, new: int, chunks: Sequence[bytes], threads: int) -> float:
        """Bring the slot behind to the committed version: seconds."""
        source = self.slots.find(manifest(old))
        current = self.slots.current()
        assert source is not None
        assert current is not None
        start = time.perf_counter()
        building = self.slots.begin(current.layout, source)
        apply(building, chunks, threads)
        building.commit_twin(1, new, manifest(new), "", proven=True)
        return time.perf_counter() - start


def manifest(version: int) -> bytes:
    return digest(b"%d" % version)


def apply(building: Building, chunks: Sequence[bytes], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(building.apply, chunks):
            pass


def copy_model(source: Path, target: Path, threads: int) -> float:
    """Seconds to copy a directory's files to new ones, `threads` at a time."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda path: shutil.copyfile(path, target / path.name), sorted(source.iterdir())):
            pass
    seconds = time.perf_counter() - start
    shutil.rmtree(target)
    return seconds


class Memory:
    """The most private memory seen while `watching`, in bytes: what is not a mapped slot or checkpoint."""

    def __init__(self) -> None:
        self.peak = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every 20 ms until the block ends."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                self.peak = max(self.peak, private_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    return 0


def measure_steps(root: Path, size: int, repeats: int, memory: Memory) -> Iterator[Row]:
    trainer = Trainer(root / "trainer", size)
    node = Node(root, 1)
    node.publish(trainer, 1, 2)
    version = 1
    for share in (0.003, 0.01):
        ratios: dict[str, list[float]] = {}
        for repeat in range(repeats):
            for threads in (1, 2):
                trainer.step(share, 100 * version + repeat)
                version += 1
                with memory.watching():
                    published, chunks, _ = node.publish(trainer, version, threads)
                    applied = node.twin(version - 1, version, chunks, threads)
                copied = copy_model(trainer.directory, root / "copy", threads)
                ratios.setdefault(f"step, {threads}", []).append(copied / applied)
                ratios.setdefault(f"publish, {threads}", []).append(copied / published)
                ratios.setdefault(f"copy, {threads}", []).append(size / copied / 1e9)
        for threads in (1, 2):
            cores = "one core" if threads == 1 else "two cores"
            yield Row(f"copy the model, {cores}", statistics.median(ratios[f"copy, {threads}"]), "GB/s")
            yield Row(
                f"step in place, {share:.1%} changed, {cores}",
                statistics.median(ratios[f"step, {threads}"]),
                "x copy",
                0.75 if share < 0.01 else 0.5,
            )
            yield Row(
                f"publish, {share:.1%} changed, {cores}",
                statistics.median(ratios[f"publish, {threads}"]),
                "x copy",
                0.2,
            )
    yield from measure_verification(node, repeats)
    yield from measure_restart(root, node, trainer, version)
    yield from measure_catch_up(root, node, trainer, repeats, memory)


def measure_verification(node: Node, repeats: int) -> Iterator[Row]:
    """Full verification beside plain BLAKE3 of as many bytes in memory, of the files, and of one block in the cache."""
    slot = node.slots.current()
    assert slot is not None
    memory = np.random.default_rng(1).integers(0, 256, slot.layout.size, np.uint8).data
    cached, from_memory, from_files = [], [], []
    for _ in range(repeats):
        start = time.perf_counter()
        bad = node.slots.verify_slot(slot, node.digests, 1)
        seconds = time.perf_counter() - start
        if bad:
            raise SystemExit(f"blocks {bad} of {slot.path} are wrong")
        start = time.perf_counter()
        for at in range(0, len(memory), BLOCK_BYTES):
            digest(memory[at : at + BLOCK_BYTES])
        from_memory.append((time.perf_counter() - start) / seconds)
        start = time.perf_counter()
        for _ in range(0, len(memory), BLOCK_BYTES):
            digest(memory[:BLOCK_BYTES])
        cached.append((time.perf_counter() - start) / seconds)
        start = time.perf_counter()
        for path in sorted(slot.path.glob("*.safetensors")):
            blake3(max_threads=1).update_mmap(path).digest()
        from_files.append((time.perf_counter() - start) / seconds)
    yield Row("full verification, one core", statistics.median(from_memory), "x BLAKE3 in memory", 0.9)
    yield Row("full verification, one core", statistics.median(from_files), "x BLAKE3 of the files")
    yield Row("full verification, one core", statistics.median(cached), "x BLAKE3 of one block in the cache")


def measure_restart(root: Path, node: Node, trainer: Trainer, version: int) -> Iterator[Row]:
    """Seconds from SIGKILL to a new process serving the version, with clean slots and in the middle of a step."""
    trainer.step(0.003, 7)
    _, chunks, _ = node.publish(trainer, version + 1, 2)
    node.twin(version, version + 1, chunks, 2)
    trainer.step(0.003, 8)
    _, chunks, _ = node.publish(trainer, version + 2, 2)
    (root / "half").mkdir()
    for number, chunk in enumerate(chunks[: len(chunks) // 2]):
        (root / "half" / f"{number:05}").write_bytes(chunk)
    node.catalog.close()
    for name, action, target in (("clean slots", "serve", 2.0), ("half a step applied", "apply", None)):
        victim = subprocess.Popen([sys.executable, __file__, "--child", action, str(root)], stdout=subprocess.PIPE)
        assert victim.stdout is not None
        victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        start = time.perf_counter()
        victim.wait()
        again = subprocess.Popen([sys.executable, __file__, "--child", "serve", str(root)], stdout=subprocess.PIPE)
        assert again.stdout is not None
        if again.stdout.readline().split()[:1] != [b"serving"]:
            raise SystemExit("nothing is served after a restart")
        yield Row(f"from SIGKILL to serving, {name}", time.perf_counter() - start, "s", target, "less")
        again.kill()
        again.wait()
    node.__init__(root, 1)  # type: ignore[misc]


def child(action: str, root: Path) -> None:
    """A process to be killed: serves, or applies half a step, says so and waits."""
    node = Node(root, 2)
    current = node.slots.current()
    assert current is not None
    lease = node.slots.lease(None, 3600, time.time())
    if action == "apply":
        behind = next(slot for slot in node.slots.slots() if slot.version < current.version)
        building = node.slots.begin(behind.layout, behind)
        for path in sorted((root / "half").iterdir()):
            building.apply(path.read_bytes())
    node.slots.release(lease.id)
    print("serving", current.version, flush=True)
    signal.pause()


def measure_catch_up(root: Path, node: Node, trainer: Trainer, repeats: int, memory: Memory) -> Iterator[Row]:
    """Seconds to apply a route of so many steps, from a slot that is that far behind.

    Once as a node does that was cut off (its slots are mapped), once as one that was down (nothing is mapped).
    """
    start = node.slots.current()
    assert start is not None
    late = Node(root / "late", 1)
    with node.slots.hold(start) as files:
        building = late.slots.begin(start.layout, files)
        building.commit(1, start.version, start.manifest, "", proven=True)
        late.slots.begin(start.layout, late.slots.current()).commit_twin(
            1, start.version, start.manifest, "", proven=True
        )
    legs = []
    for step in range(max(CATCH_UP)):
        trainer.step(0.003, 1000 + step)
        _, chunks, _ = node.publish(trainer, start.version + 1 + step, 2)
        legs.append(chunks)
    for restart in (False, True):
        seconds = {}
        how = "after a restart" if restart else "after a cut"
        for count in CATCH_UP:
            times = []
            for _ in range(repeats + 1):
                if restart:
                    late.catalog.close()
                    late = Node(root / "late", 1)
                with memory.watching():
                    begun = time.perf_counter()
                    building = late.slots.begin(start.layout, late.slots.current())
                    catch_up(building, start.layout, legs[:count])
                    times.append(time.perf_counter() - begun)
                if count == max(CATCH_UP) and building.digests(2) != node.digests:
                    raise SystemExit("catching up led to other bytes")
                building.abort()
            seconds[count] = statistics.median(times[1:])
            yield Row(f"catch-up over {count} step{'s' * (count > 1)} {how}, one core", seconds[count], "s")
        yield Row(f"catch-up over 20 steps {how}", seconds[20] / seconds[1], "x one", 11.0, "less")


def catch_up(building: Building, layout: Layout, legs: Sequence[Sequence[bytes]]) -> None:
    for chunks in legs:
        building.advance(layout)
        apply(building, chunks, 1)


def measure_disk(root: Path, disk: Path, size: int) -> Iterator[Row]:
    """What one step dirties when the slots are on a disk."""
    trainer = Trainer(root / "trainer", size)
    node = Node(disk, 2)
    node.publish(trainer, 1, 2)
    trainer.step(0.003, 1)
    _, chunks, _ = node.publish(trainer, 2, 2)
    node.twin(1, 2, chunks, 2)
    for share in (0.003, 0.01):
        current = node.slots.current()
        assert current is not None
        trainer.step(share, int(share * 1000))
        head = Node(root / f"head-{share}", 2)
        with node.slots.hold(current) as files:
            head.slots.begin(current.layout, files).commit(1, 2, manifest(2), "", proven=True)
        _, chunks, _ = head.publish(trainer, 3, 2)
        os.sync()
        before = written_bytes()
        building = node.slots.begin(current.layout, current)
        apply(building, chunks, 2)
        os.sync()
        yield Row(f"written to the device by a step, {share:.1%} changed", (written_bytes() - before) / size, "x model")
        building.abort()
        head.catalog.close()
        shutil.rmtree(root / f"head-{share}")
        trainer.step(share, int(share * 1000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="a model of 256 MiB, one repeat")
    parser.add_argument("--size-mib", type=int, help="size of the model (default 2048)")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="a folder on tmpfs")  # noqa: S108 - made unique below
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a disk")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return 0
    size = (options.size_mib or (256 if options.quick else 2048)) << 20
    repeats = 1 if options.quick else REPEATS
    need = 7 * size
    if shutil.disk_usage(options.dir).free < need:
        print(f"{options.dir} has not {need >> 20} MiB free: give --size-mib or another --dir", file=sys.stderr)
        return 2
    rows: list[Row] = []
    memory = Memory()
    console = Console()
    for base, measure in _measurements(options, size, repeats, memory):
        with tempfile.TemporaryDirectory(dir=base, prefix="patchswarm-bench-") as folder:
            for row in measure(Path(folder)):
                rows.append(row)
                console.print(f"{row.name}: {row.value:.3g} {row.unit}", highlight=False)
    rows.append(Row("peak memory beside mapped files", memory.peak / 2**20, "MiB", MEMORY_LIMIT_MIB, "less"))
    return report(console, rows, size, options.json)


def _measurements(
    options: argparse.Namespace, size: int, repeats: int, memory: Memory
) -> list[tuple[Path, Callable[[Path], Iterator[Row]]]]:
    def disk(root: Path) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(dir=options.disk, prefix="patchswarm-bench-") as folder:
            yield from measure_disk(root, Path(folder), min(size, 512 << 20))

    return [(options.dir, lambda root: measure_steps(root, size, repeats, memory)), (options.dir, disk)]


def report(console: Console, rows: Sequence[Row], size: int, target: Path | None) -> int:
    table = Table(title=f"storage, {size >> 20} MiB BF16, {os.cpu_count()} cores, {platform.release()}")
    for column in ("what", "measured", "target", ""):
        table.add_column(column)
    for row in rows:
        sign = "≥" if row.better == "more" else "≤"
        bound = "" if row.target is None else f"{sign} {row.target:g} {row.unit}"
        table.add_row(row.name, f"{row.value:.3g} {row.unit}", bound, {None: "", True: "met", False: "MISSED"}[row.met])
    console.print(table)
    if target:
        found = [{**asdict(row), "met": row.met} for row in rows]
        target.write_text(json.dumps({"size_bytes": size, "cores": os.cpu_count(), "rows": found}, indent=2) + "\n")
    judged = [row for row in rows if row.met is not None]
    missed = [row.name for row in judged if not row.met]
    line = f"targets: {len(judged) - len(missed)} of {len(judged)} met"
    print(line + (f"; missed: {', '.join(missed)}" if missed else ""))
    return 3 if missed else 0


if __name__ == "__main__":
    with suppress(BrokenPipeError), termination_as_exit():
        sys.exit(main())
