"""Follows a stream and writes each new version as one of slime's folders, so that hosts can go on pulling those.

    OUT/weight_v000007/       appears whole, by a rename
    OUT/.patchswarm.json      which version each folder is; written before a folder appears, held by one process
    OUT/.making-…             a folder in the making, removed at the next start

A folder's number is that of the version's label where that is `weight_vNNNNNN`, as slime's own trainer calls it, and
the version's number otherwise. A delta is written when the version is the one that follows the last folder's and that
is still held here; anything else is written whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from ...errors import BadInputError, InUseError, reason
from ...locking import alone
from ..client import Client
from ..errors import LocalError, UnknownVersionError
from ..lease import Lease
from .format import ChecksumName, Encoding, folder_name, number_of
from .target import write_delta, write_full

STATE_NAME: Final = ".patchswarm.json"
FORMAT: Final = 1
_MAKING: Final = ".making-"
LEASE_TTL_S: Final = 60.0


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """One folder, and the version whose weights it leads to. Number 0 is a base that has no folder."""

    number: int
    epoch: int
    version: int
    manifest: str
    full: bool


class _State(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    stream: str
    folders: list[Folder] = []


@dataclass(frozen=True)
class _Made:
    """A folder that has been written and is not to be seen yet, and the lease on its version."""

    folder: Folder
    lease: Lease
    taking_back: contextlib.ExitStack
    """Removes what is not to be seen, and lets the version go."""


@dataclass(frozen=True)
class Options:
    """How folders are written."""

    encoding: Encoding = "xor"
    checksum: ChecksumName = "xxh3-128"
    full_every: int = 0
    """A full folder after so many deltas, and then everything before the full one before that is removed; 0: never."""


class Follower:
    """Writes a stream's versions into `out`. A context manager; one at a time for each folder."""

    def __init__(self, client: Client, stream: str, out: Path, options: Options) -> None:
        self._client = client
        self._stream = stream
        self._out = out
        self._options = options
        self._state = _State(format=FORMAT, stream=stream)
        self._stack = contextlib.ExitStack()
        self._held: Lease | None = None
        self._holding = contextlib.ExitStack()
        self._made: _Made | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_locked(self._out))
            self._state = self._read_state()
            self._tidy()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            if self._made is not None:
                self._made.taking_back.close()
            self._let_go()

    @property
    def last(self) -> Folder | None:
        """The folder that was written last."""
        return self._state.folders[-1] if self._state.folders else None

    def step(self, timeout_s: float) -> Folder | None:
        """Wait for a version that is newer than the last folder's, and write it; None when none comes in time.

        Raises LocalError, DeltaError or StagingError. What was begun is then taken back, and may be tried again.
        """
        return self.show() if self.make(timeout_s) else None

    def make(self, timeout_s: float) -> bool:
        """Wait for a version that is newer than the last folder's, and write it out of sight; False when none comes.

        May be broken off anywhere. Raises what `step` raises; what was begun is then taken back.
        """
        last = self.last
        at_least, epoch = (0, None) if last is None else (last.version + 1, last.epoch)
        found = self._client.wait(self._stream, at_least, timeout_s, epoch=epoch)
        if found is None:
            return False
        before = self._hold_last(last)
        with contextlib.ExitStack() as stack:
            lease = stack.enter_context(self._client.lease(self._stream, ttl_s=LEASE_TTL_S))
            folder = self._write(lease, before, last)
            stack.callback(shutil.rmtree, self._making(folder.number), ignore_errors=True)
            lease.check()
            if not folder.full:
                self._held_check()
            self._made = _Made(folder, lease, stack.pop_all())
        return True

    def show(self) -> Folder:
        """Let what `make` wrote appear, and hold its version for the next delta. Short, and not to be broken off."""
        made, self._made = self._made, None
        assert made is not None, "something was made"
        with made.taking_back as holding:
            folder = made.folder
            self._keep([*self._older_than(folder.number), folder])
            if folder.number:
                self._making(folder.number).rename(self._path(folder.number))
            if folder.full and self._options.full_every:
                self._prune()
            self._let_go()
            self._held, self._holding = made.lease, holding.pop_all()
        return folder

    def _write(self, lease: Lease, before: Path | None, last: Folder | None) -> Folder:
        info = lease.info
        labelled = number_of(info.label)
        number = info.version if labelled is None else labelled
        folder = Folder(number=number, epoch=info.epoch, version=info.version, manifest=info.manifest, full=True)
        if number == 0:  # what the engines were started with: they have it, and count from it
            return folder
        making = self._making(number)
        shutil.rmtree(making, ignore_errors=True)
        try:
            as_delta = (
                before is not None
                and last is not None
                and number == last.number + 1
                and not self._is_full_due()
                and write_delta(
                    before,
                    lease.path,
                    making,
                    version=number,
                    base_version=last.number,
                    encoding=self._options.encoding,
                    checksum=self._options.checksum,
                    more={"patchswarm_version": str(info.version), "patchswarm_manifest": info.manifest},
                )
            )
            if not as_delta:
                write_full(lease.path, making)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return msgspec.structs.replace(folder, full=not as_delta)

    def _older_than(self, number: int) -> list[Folder]:
        """Folders below a number that comes now; those from it on are of an earlier run of the trainer, and removed."""
        for each in self._state.folders:
            if each.number >= number:
                self._remove(each.number)
        return [each for each in self._state.folders if each.number < number]

    def _prune(self) -> None:
        """Remove what lies before the full folder before the last one: nobody starts from there."""
        full = [each.number for each in self._state.folders if each.full]
        if len(full) < 2:
            return
        for each in self._state.folders:
            if each.number < full[-2]:
                self._remove(each.number)
        self._keep([each for each in self._state.folders if each.number >= full[-2]])

    def _is_full_due(self) -> bool:
        deltas = 0
        for each in reversed(self._state.folders):
            if each.full:
                break
            deltas += 1
        return bool(self._options.full_every) and deltas >= self._options.full_every

    # -- the version before ----------------------------------------------------------------------------------

    def _hold_last(self, last: Folder | None) -> Path | None:
        """Where the last folder's version is, held here; None when it is gone and no delta can be made from it."""
        if self._held is None and last is not None:
            with contextlib.ExitStack() as stack:
                try:
                    lease = stack.enter_context(self._client.lease(self._stream, last.version, LEASE_TTL_S))
                except UnknownVersionError:
                    return None
                if lease.info.manifest != last.manifest:
                    return None
                self._held, self._holding = lease, stack.pop_all()
        if self._held is None:
            return None
        try:
            self._held.check()
        except LocalError:
            self._let_go()
            return None
        return self._held.path

    def _held_check(self) -> None:
        """What was compared with must have been held to the end."""
        if self._held is not None:
            self._held.check()

    def _let_go(self) -> None:
        self._held = None
        with contextlib.suppress(LocalError):  # it is of no more use; a lost lease does no harm here
            self._holding.close()

    # -- the folder ------------------------------------------------------------------------------------------

    def _read_state(self) -> _State:
        path = self._out / STATE_NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            foreign = sorted(each.name for each in self._out.iterdir() if number_of(each.name) is not None)
            if foreign:
                raise BadInputError(
                    f"{self._out} holds {foreign[0]} of somebody else: give a folder of its own"
                ) from None
            return _State(format=FORMAT, stream=self._stream)
        try:
            state = msgspec.json.decode(data or b"{}", type=_State)
        except msgspec.DecodeError:
            raise BadInputError(f"{path} is damaged: remove the folder's contents and start again") from None
        if state.format != FORMAT:
            raise BadInputError(
                f"{path} is of format {state.format}, this patchswarm writes {FORMAT}: give another folder"
            )
        if state.stream != self._stream:
            raise BadInputError(
                f"{self._out} holds folders of stream {state.stream!r}, not of {self._stream!r}: give another folder"
            )
        return state

    def _keep(self, folders: list[Folder]) -> None:
        self._state = _State(format=FORMAT, stream=self._stream, folders=folders)
        making = self._out / f"{STATE_NAME}.new"
        with making.open("wb") as file:
            file.write(msgspec.json.encode(self._state))
            file.flush()
            os.fsync(file.fileno())
        making.replace(self._out / STATE_NAME)

    def _tidy(self) -> None:
        """Undo what a crash left half-done."""
        for each in self._out.glob(f"{_MAKING}*"):
            shutil.rmtree(each, ignore_errors=True)
        there = [each for each in self._state.folders if each.number == 0 or self._path(each.number).is_dir()]
        if there != self._state.folders:
            self._keep(there)

    def _remove(self, number: int) -> None:
        """Take a folder away in one step, so that no host reads half of it."""
        path = self._path(number)
        if path.is_dir():
            doomed = self._out / f"{_MAKING}gone-{path.name}"
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._out / folder_name(number)

    def _making(self, number: int) -> Path:
        return self._out / f"{_MAKING}{folder_name(number)}"


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    def unusable(error: OSError) -> BadInputError:
        return BadInputError(f"{out}: cannot write here: {reason(error)}")

    def taken(_: int) -> InUseError:
        return InUseError(f"{out}: another process writes here; stop it first, or choose another folder")

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(error) from None
    with alone(out / f"{STATE_NAME}.lock", unusable=unusable, taken=taken):
        yield
