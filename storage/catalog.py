"""The catalog: signed objects, high-water marks, leases and small settings, in one SQLite database (WAL).

What is written with `durable` survives a crash of the machine before the call returns. Leases do not need that:
their readers are processes of this host and die with it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..protocol.ids import short
from ..protocol.messages import ObjectKind
from .errors import CatalogError, NoSpaceError, NotNewerError
from .files import Files, make_folders

FORMAT: Final = 1

_SCHEMA: Final = """
CREATE TABLE objects (digest BLOB PRIMARY KEY, kind INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE marks (stream TEXT PRIMARY KEY, epoch INTEGER NOT NULL, version INTEGER NOT NULL, manifest BLOB NOT NULL)
  WITHOUT ROWID;
CREATE TABLE settings (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (id TEXT PRIMARY KEY, stream TEXT NOT NULL, epoch INTEGER NOT NULL, version INTEGER NOT NULL,
  manifest BLOB NOT NULL, expires_at REAL NOT NULL, state INTEGER NOT NULL, boot BLOB NOT NULL) WITHOUT ROWID;
"""


class Mark(NamedTuple):
    """The newest version ever committed in a stream."""

    epoch: int
    version: int
    manifest: bytes


class LeaseRow(NamedTuple):
    """A lease as it is kept: `state` and `boot` as `leases.py` defines them."""

    id: str
    stream: str
    epoch: int
    version: int
    manifest: bytes
    expires_at: float
    state: int
    boot: bytes


class Catalog:
    """One open catalog. Thread-safe; every method is one transaction. Raises CatalogError for a damaged file."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._lock = threading.RLock()
        make_folders(self._files, path.parent)
        with self._told():
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    def _open(self) -> None:
        with self._told():
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA trusted_schema = OFF")
            found = self._database.execute("PRAGMA user_version").fetchone()[0]
            verdict = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise CatalogError(f"{self.path} is damaged ({verdict}): rebuild it")
        if found == 0:
            with self._write(durable=True) as database:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {FORMAT}")
        elif found != FORMAT:
            error = CatalogError(f"{self.path} has format {found}, this version reads {FORMAT}: upgrade patchswarm")
            error.later_format = True
            raise error

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def fold(self) -> None:
        """Move everything from the write-ahead log into the main file, so that this one stands alone."""
        busy = self._read("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        if busy:
            raise CatalogError(f"{self.path} is in use by another process: stop it first")

    # signed objects

    def put_objects(self, items: Iterable[tuple[ObjectKind, bytes, bytes]]) -> None:
        """Keep signed objects, given as (kind, digest, data): all of them durable when this returns, or none."""
        with self._write(durable=True) as database:
            database.executemany(
                "INSERT INTO objects (kind, digest, data) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING",
                [(int(kind), digest, data) for kind, digest, data in items],
            )

    def objects(self) -> list[tuple[ObjectKind, bytes, bytes]]:
        """All signed objects, as (kind, digest, data)."""
        rows = self._read("SELECT kind, digest, data FROM objects")
        return [(ObjectKind(kind), digest, data) for kind, digest, data in rows]

    def forget(self, digests: Iterable[bytes]) -> None:
        """Drop signed objects."""
        with self._write(durable=False) as database:
            database.executemany("DELETE FROM objects WHERE digest = ?", [(each,) for each in digests])

    # high-water marks

    def raise_mark(self, stream: str, epoch: int, version: int, manifest: bytes) -> None:
        """Record that a version was committed. Durable. Raises NotNewerError rather than going backwards."""
        with self._write(durable=True) as database:
            row = database.execute("SELECT epoch, version, manifest FROM marks WHERE stream = ?", (stream,)).fetchone()
            if row is not None:
                mark = Mark(row[0], row[1], row[2])
                if mark == (epoch, version, manifest):
                    return
                if (epoch, version) <= (mark.epoch, mark.version):
                    raise NotNewerError(
                        f"{stream} version {version} (epoch {epoch}, manifest {short(manifest)}) is not newer than "
                        f"version {mark.version} (epoch {mark.epoch}, manifest {short(mark.manifest)})"
                    )
            database.execute(
                "INSERT INTO marks VALUES (?, ?, ?, ?) ON CONFLICT (stream) DO UPDATE SET "
                "epoch = excluded.epoch, version = excluded.version, manifest = excluded.manifest",
                (stream, epoch, version, manifest),
            )

    def mark(self, stream: str) -> Mark | None:
        """The newest version ever committed in a stream here."""
        rows = self._read("SELECT epoch, version, manifest FROM marks WHERE stream = ?", (stream,))
        return Mark(rows[0][0], rows[0][1], rows[0][2]) if rows else None

    # settings

    def get(self, key: str) -> bytes | None:
        """A small value, or None."""
        rows = self._read("SELECT value FROM settings WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def put(self, key: str, value: bytes) -> None:
        """Keep a small value. Durable."""
        with self._write(durable=True) as database:
            database.execute(
                "INSERT INTO settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, value),
            )

    # leases

    def put_lease(self, row: LeaseRow) -> None:
        """Keep a lease, replacing what was known of it."""
        with self._write(durable=False) as database:
            database.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def drop_leases(self, ids: Iterable[str]) -> None:
        """Forget leases."""
        with self._write(durable=False) as database:
            database.executemany("DELETE FROM leases WHERE id = ?", [(each,) for each in ids])

    def leases(self, stream: str) -> list[LeaseRow]:
        """All leases of a stream."""
        rows = self._read("SELECT * FROM leases WHERE stream = ?", (stream,))
        return [LeaseRow(*row) for row in rows]

    @contextmanager
    def _write(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told():
            self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._files.commit(self._database)
            except BaseException:
                with suppress(sqlite3.Error):  # the database may have rolled back by itself; the first error counts
                    self._database.rollback()
                raise

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._told():
            return self._database.execute(query, values).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorname == "SQLITE_FULL":
                raise NoSpaceError(f"no space left to write {self.path}: free some") from error
            raise CatalogError(f"{self.path} cannot be used: {error}") from error
