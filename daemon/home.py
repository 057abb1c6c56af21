"""The home: the durable folder that makes a node what it is, who may use it, and one daemon at a time.

format              "patchswarm home 1": written last, so a folder without it is no home yet
config.toml         see `config`
keys/  0700         node.key node.crt ca.crt membership; on the head also ca.key publisher.key (all 0600)
invites/  0700      one file per invite that this node gave out
token*              bearer tokens of the local TCP socket (0600): token, token-publish, token-admin
catalog.sqlite catalog.signed chunks/ slots/ patchswarm.sock lock
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import HomeError, InUseError, reason
from .locking import alone

FORMAT: Final = 1
_FORMAT_LINE: Final = "patchswarm home "
TOKENS: Final = ("token", "token-publish", "token-admin")
_OWN_NAMES: Final = {"config.toml", "keys", "invites", "lock", *TOKENS}


@dataclass(frozen=True)
class Home:
    """Paths of a home; `root` is absolute."""

    root: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Home:
        """The home at `path`, which need not exist. Raises HomeError for the `~` of a user that does not."""
        try:
            expanded = Path(path).expanduser()
        except RuntimeError:
            raise HomeError(f"{path}: no such user; give --home as a path") from None
        return cls(Path(os.path.abspath(expanded)))  # noqa: PTH100 -- keeps symlinks as given

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.root / "config.toml"

    @property
    def keys(self) -> Path:
        """Keys and certificates, for the owner only."""
        return self.root / "keys"

    @property
    def invites(self) -> Path:
        """Invites that this node gave out."""
        return self.root / "invites"

    @property
    def catalog(self) -> Path:
        """The SQLite catalog."""
        return self.root / "catalog.sqlite"

    @property
    def chunks(self) -> Path:
        """Sealed chunks."""
        return self.root / "chunks"

    @property
    def lock_file(self) -> Path:
        """Held by the one process that may change the home."""
        return self.root / "lock"

    def is_initialised(self) -> bool:
        """Whether `init` or `join` once finished here. Raises HomeError when it cannot be seen."""
        try:
            return (self.root / "format").exists()
        except OSError as error:
            raise HomeError(f"{self.root}: cannot look into it: {error.strerror}; run as its owner") from None

    def check(self) -> None:
        """Raise HomeError, one clear line, unless this is a finished home that this user may use."""
        if not self.is_initialised():
            state = "not a home yet" if self.root.exists() else "no such home"
            raise HomeError(f"{self.root}: {state}; make one there with 'patchswarm init' or 'patchswarm join'")
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
            raise HomeError(f"{self.root}: no right to write this home; run as its owner")
        text = _read(self.root / "format").decode(errors="replace").strip()
        number = text.removeprefix(_FORMAT_LINE)
        if not text.startswith(_FORMAT_LINE) or not number.isdigit():
            raise HomeError(
                f"{self.root / 'format'}: does not say {_FORMAT_LINE + str(FORMAT)!r}; "
                "choose another --home, or restore the file"
            )
        if int(number) != FORMAT:
            age = "newer" if int(number) > FORMAT else "older"
            raise HomeError(
                f"{self.root}: home format {number}, but this patchswarm reads format {FORMAT}; "
                f"use the {age} patchswarm that wrote it"
            )

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Make a new home: the body writes its files, alone; when it raises, nothing of the home is left.

        Raises HomeError when it is a home already, is foreign or cannot be made. A home whose making was cut
        short by a crash has no format file, and is simply made again.
        """
        created = not self.root.exists()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_free()
        except (FileExistsError, NotADirectoryError):
            raise HomeError(f"{self.root}: not a directory; choose another --home") from None
        except OSError as error:
            raise HomeError(f"{self.root}: cannot make a home here: {reason(error)}") from None
        with self.lock():
            self._check_free()
            try:
                for folder in (self.keys, self.invites):
                    folder.mkdir(mode=0o700, exist_ok=True)
                    folder.chmod(0o700)
                yield
                write_private(self.root / "format", f"{_FORMAT_LINE}{FORMAT}\n".encode())
            except BaseException:
                self._abandon(created)
                raise

    def _check_free(self) -> None:
        if self.is_initialised():
            raise HomeError(f"{self.root}: already a home; choose another --home, or delete this one first")
        names = {path.name for path in self.root.iterdir() if not path.name.endswith(".tmp")}
        foreign = sorted(names - _OWN_NAMES)
        if foreign:
            raise HomeError(f"{self.root}: not empty (holds {foreign[0]!r}) and not a home; choose another --home")

    def _abandon(self, created: bool) -> None:
        for folder in (self.keys, self.invites):
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("config.toml", "lock", *TOKENS):
            (self.root / name).unlink(missing_ok=True)
        if created:
            with contextlib.suppress(OSError):  # something else was put here meanwhile: leave it
                self.root.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the home alone. Raises InUseError naming the process that has it; the kernel frees it on any exit."""

        def unusable(error: OSError) -> HomeError:
            return HomeError(f"{self.lock_file}: cannot open it: {reason(error)}")

        def taken(handle: int) -> InUseError:
            pid = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            return InUseError(f"{self.root}: in use by process {pid}; stop it first, or choose another --home")

        with alone(self.lock_file, unusable=unusable, taken=taken) as handle:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path`, mode 0600, whole and durable or not at all. Raises HomeError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise HomeError(f"{path}: cannot write it: {reason(error)}") from None


def read_token(path: Path) -> str:
    """The token in a file. Raises HomeError when it cannot be read, or others than the owner can."""
    text = _read(path).decode(errors="replace").strip()
    if stat.S_IMODE(path.stat().st_mode) & 0o007:
        raise HomeError(f"{path}: every user may read this token; run 'chmod o= {path}', and replace it if they did")
    return text


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise HomeError(f"{path}: cannot read it: {reason(error)}") from None
