"""What can go wrong on disk: one small hierarchy for the whole storage floor.

Each message names the file, version or chunk, and says what to do about it.
"""

from __future__ import annotations


class StorageError(Exception):
    """Root of everything this floor raises on purpose."""


class NotACheckpointError(StorageError):
    """The directory, or a file in it, is not a checkpoint that can be published."""


class SourceChangedError(StorageError):
    """A foreign file changed while it was being read: the trainer is still writing it."""


class BaseDiffersError(StorageError):
    """A local base checkpoint does not hold the bytes it is said to hold."""


class ChunkMissingError(StorageError):
    """The chunk is not in the store."""


class ChunkCorruptError(StorageError):
    """Bytes that do not hash to the name of the chunk they claim to be."""


class SlotsBusyError(StorageError):
    """Every slot is leased, pinned or being written: wait for a release or an expiry."""


class SlotStateError(StorageError):
    """A slot's state file is torn, foreign or of a format this version does not read."""


class SlotGoneError(StorageError):
    """The version is not materialised here (any more)."""


class SlotDamagedError(SlotGoneError):
    """A file of the slot is missing or has another size: none of it can be used."""


class VerifyStoppedError(StorageError):
    """A verification was told to stop before its end: it proved nothing."""


class ProofFailedError(StorageError):
    """What was rebuilt differs from its version's digest table."""


class NotNewerError(StorageError):
    """A commit would take the stream backwards."""


class LoadInFullError(StorageError):
    """Two versions that no delta leads between: tensors came, went or changed their shape, or too much has changed."""


class NotComparableError(StorageError):
    """Two checkpoints whose tensors are not the same ones in the same dtypes."""


class UnknownLeaseError(StorageError):
    """No such lease was ever given."""


class LeaseGoneError(StorageError):
    """The lease ran out or was voided; its slot is retired."""


class NoSpaceError(StorageError):
    """The file system has no room for what is about to be written."""


class CatalogError(StorageError):
    """The catalog cannot be opened, read or written. `later_format`: it is whole, but not for this version."""

    later_format = False


class HomeError(StorageError):
    """A home or slot directory is missing, foreign, of another format, or unusable."""
