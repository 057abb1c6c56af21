"""The catalog: signed objects, high-water marks, leases and small settings, in one SQLite database (WAL).

What is written with `durable` survives a crash of the machine before the call returns. Leases do not need that:
their readers are processes of this host and die with it. Objects and settings are kept in the signed log as well.
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
from .errors import CatalogError, NoSpaceError, NotNewerError, StorageError
from .files import Files, make_folders
from .signed_log import FORGOTTEN, SETTING, Entry, SignedLog

FORMAT: Final = 1

_LOG_BYTES: Final = 1 << 20
"""What the signed log may grow by, beyond twice what it has to say, before it is written anew."""

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
    """One open catalog. Thread-safe; every method is one transaction. Raises CatalogError for a damaged file.

    What the signed log beside it says and the database does not is put in when it is opened. A catalog that is only
    being filled, to take another's place, has no log.
    """

    def __init__(self, path: Path, files: Files | None = None, *, logged: bool = True) -> None:
        self.path = path
        self._log_limit = _LOG_BYTES
        self._log_due = False  # it has to be written anew before anything is appended
        self._files = files or Files()
        self._lock = threading.RLock()
        make_folders(self._files, path.parent)
        with self._told():
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._log = SignedLog(log_path(path), self._files) if logged else None
        try:
            self._open()
            self._agree()
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

    @property
    def is_busy(self) -> bool:
        """Whether another thread is in the middle of a transaction, which may wait for a disk."""
        if not self._lock.acquire(blocking=False):
            return True
        self._lock.release()
        return False

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()
            if self._log is not None:
                self._log.close()

    def fold(self) -> None:
        """Move everything from the write-ahead log into the main file, so that this one stands alone."""
        busy = self._read("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]
        if busy:
            raise CatalogError(f"{self.path} is in use by another process: stop it first")

    # the signed log

    def _agree(self) -> None:
        """Put in what only the signed log knows, and let it say what the database says."""
        if self._log is None:
            return
        logged = self._log.read()
        known = {each.key: each for each in self._entries()}
        # A setting that the log has another value of was not on the device yet when the machine stopped.
        lost = [
            each
            for key, each in logged.items()
            if key not in known or (each.what == SETTING and self._log.is_whole and each != known[key])
        ]
        if lost:
            kinds = {int(kind) for kind in ObjectKind}
            with self._write(durable=True) as database:
                database.executemany(
                    "INSERT INTO objects (kind, digest, data) VALUES (?, ?, ?)",
                    [(each.what, each.name, each.data) for each in lost if each.what in kinds],
                )
                database.executemany(
                    "INSERT OR REPLACE INTO settings VALUES (?, ?)",
                    [(each.name.decode(), each.data) for each in lost if each.what == SETTING],
                )
        if lost or not self._log.is_whole or logged != known:
            with suppress(NoSpaceError):  # a node whose disk is full starts and serves all the same
                self._rewrite_log(self._log)

    def _entries(self) -> list[Entry]:
        """What the log has to say: everything but node records, of which each node signs a new one when it is asked."""
        objects = self._read("SELECT kind, digest, data FROM objects WHERE kind != ?", (int(ObjectKind.NODE),))
        settings = self._read("SELECT key, value FROM settings")
        return [Entry(*row) for row in objects] + [Entry(SETTING, key.encode(), value) for key, value in settings]

    def _rewrite_log(self, log: SignedLog) -> None:
        self._log_due = True
        with self._told():
            self._log_limit = 2 * log.replace(self._entries()) + _LOG_BYTES
        self._log_due = False

    def _note(self, entries: Iterable[Entry], *, durable: bool) -> None:
        """Say something in the log. Called with the lock held."""
        said = list(entries)
        if self._log is None or not said:
            return
        if self._log_due or self._log.size_bytes > self._log_limit:
            self._rewrite_log(self._log)
        with self._told():
            self._log.append(said, sync=durable)

    @contextmanager
    def _noted(self, entries: Sequence[Entry]) -> Iterator[sqlite3.Connection]:
        """A transaction of what the log says first, which makes it durable; taken back there when it fails."""
        with self._lock:
            self._note(entries, durable=True)
            try:
                with self._write(durable=self._log is None or not entries) as database:
                    yield database
            except Exception:  # raised again below, once the log has taken back what the catalog did not get
                with suppress(StorageError):
                    self._note([Entry(FORGOTTEN, each.name) for each in entries if each.what != SETTING], durable=True)
                raise

    # signed objects

    def put_objects(self, items: Iterable[tuple[ObjectKind, bytes, bytes]]) -> None:
        """Keep signed objects, given as (kind, digest, data): all of them durable when this returns, or none."""
        rows = [(int(kind), digest, data) for kind, digest, data in items]
        with self._noted([Entry(*row) for row in rows if row[0] != ObjectKind.NODE]) as database:
            database.executemany(
                "INSERT INTO objects (kind, digest, data) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING", rows
            )

    def objects(self) -> list[tuple[ObjectKind, bytes, bytes]]:
        """All signed objects, as (kind, digest, data)."""
        rows = self._read("SELECT kind, digest, data FROM objects")
        return [(ObjectKind(kind), digest, data) for kind, digest, data in rows]

    def forget(self, digests: Iterable[bytes], *, durable: bool = False) -> None:
        """Drop signed objects."""
        gone = list(digests)
        with self._lock:
            # The log first: what is only there would come back.
            self._note([Entry(FORGOTTEN, each) for each in gone], durable=durable)
            with self._write(durable=durable) as database:
                database.executemany("DELETE FROM objects WHERE digest = ?", [(each,) for each in gone])

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
                        f"version {mark.version} (epoch {mark.epoch}, manifest {short(mark.manifest)}): raise it"
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
        with self._noted([Entry(SETTING, key.encode(), value)]) as database:
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
        except OSError as error:
            raise CatalogError(f"the signed log of {self.path} cannot be used: {error}") from error


def log_path(catalog: Path) -> Path:
    """Where the signed log of a catalog lies."""
    return catalog.with_suffix(".signed")
