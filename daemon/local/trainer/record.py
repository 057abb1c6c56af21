"""What a watcher has done with each folder, on disk: so that a restart publishes nothing twice and leaves nothing out.

What is about to be published is written down first, with the newest version of that moment. Whoever finds that after
a crash asks the daemon: a newer version with the folder's label means that it was published.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from ...errors import HomeError, InUseError
from ...home import write_private
from ...locking import alone

FORMAT: Final = 1


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a folder that looked as `stamp` says."""

    stamp: str
    outcome: Literal["published", "skipped", "refused"]
    version: int | None = None
    why: str = ""


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A publish that was begun, and the newest (epoch, version) before it."""

    name: str
    stamp: str
    label: str
    after: tuple[int, int]


class _State(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    stream: str
    directory: str
    done: dict[str, Done] = {}
    intent: Intent | None = None


class Record:
    """The record of one directory's folders in one stream."""

    def __init__(self, path: Path, state: _State) -> None:
        self._path = path
        self._state = state

    @property
    def intent(self) -> Intent | None:
        """The publish that was begun and whose end is not known."""
        return self._state.intent

    def done(self, name: str, stamp: str) -> Done | None:
        """What became of a folder, if it still looks the same."""
        found = self._state.done.get(name)
        return found if found is not None and found.stamp == stamp else None

    def begin(self, intent: Intent) -> None:
        """Write down what is about to be published."""
        self._save(intent=intent)

    def finish(self, name: str, done: Done) -> None:
        """Write down what became of a folder."""
        self._save(done={**self._state.done, name: done}, intent=None)

    def keep(self, names: set[str]) -> None:
        """Forget folders that are not there any more."""
        kept = {name: done for name, done in self._state.done.items() if name in names}
        intent = self.intent if self.intent is not None and self.intent.name in names else None
        if len(kept) != len(self._state.done) or intent != self.intent:
            self._save(done=kept, intent=intent)

    def _save(self, **changes: object) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)
        write_private(self._path, msgspec.json.format(msgspec.json.encode(self._state)) + b"\n")


@contextlib.contextmanager
def open_record(folder: Path, stream: str, directory: Path) -> Iterator[Record]:
    """The record of `directory` in `stream`, kept in `folder`. Raises InUseError while another watcher has it."""
    key = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    path = folder / f"{stream}-{key}.json"

    def unusable(error: OSError) -> HomeError:
        return HomeError(f"{folder}: cannot keep a record here: {error.strerror}; name another folder")

    def taken(_: int) -> InUseError:
        return InUseError(f"{directory} is watched for {stream!r} already: stop the other watcher first")

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(error) from None
    with alone(path.with_suffix(".lock"), unusable=unusable, taken=taken):
        yield Record(path, _read(path, stream, directory))


def _read(path: Path, stream: str, directory: Path) -> _State:
    fresh = _State(format=FORMAT, stream=stream, directory=str(directory))
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return fresh
    except (OSError, msgspec.DecodeError) as error:
        raise HomeError(
            f"{path} cannot be read ({error}): remove it, and finished folders are published again"
        ) from None
    if state.format != FORMAT:
        raise HomeError(
            f"{path} is of format {state.format}, this patchswarm writes {FORMAT}: use the one that wrote it"
        )
    return state
