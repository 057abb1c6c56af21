"""A local base checkpoint: weights the host has already, verified against a version and never written."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from ..protocol.layout import Layout
from .checkpoint import Source, Stamp
from .errors import BaseDiffersError
from .files import Files
from .mapped import Bytes, RegionTable
from .verify import bad_blocks


class BaseSource:
    """The files of one version as they lie in a foreign directory. A `ByteSource`; close it after use."""

    def __init__(self, directory: Path, layout: Layout, manifest: bytes, files: Files) -> None:
        self.directory = directory
        self.layout = layout
        self.manifest = manifest
        stamps = []
        for file in layout.files:
            path = directory / file.path
            try:
                stamp = Stamp.of(files.stat(path))
            except OSError as error:
                raise BaseDiffersError(f"{path} is part of the base and cannot be read: {error.strerror}") from None
            if stamp.size_bytes != file.size:
                raise BaseDiffersError(f"{path} has {stamp.size_bytes} bytes, the base version {file.size}")
            stamps.append(stamp)
        self._source = Source(directory, layout, stamps, files)

    @cached_property
    def table(self) -> RegionTable:
        """The regions of its layout."""
        return RegionTable(self.layout)

    def view(self, file: int, offset: int, size: int) -> Bytes:
        """The same as `read`, not to be written to."""
        data = self.read(file, offset, size)
        data.flags.writeable = False
        return data

    def read(self, file: int, offset: int, size: int) -> Bytes:
        """`size` bytes of a file in a fresh array. Raises SourceChangedError."""
        return self._source.read(file, offset, size)

    def close(self) -> None:
        """Close all files."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def verify_base(
    directory: Path,
    layout: Layout,
    digests: bytes,
    manifest: bytes,
    threads: int | None = None,
    files: Files | None = None,
) -> BaseSource:
    """The base in `directory` if it holds exactly the version of this layout and digest table.

    Files that the layout does not name are ignored. Reads everything once. Raises BaseDiffersError.
    """
    base = BaseSource(directory, layout, manifest, files or Files())
    try:
        bad = bad_blocks(base, layout, digests, threads or os.cpu_count() or 1)
    except BaseException:
        base.close()
        raise
    if bad:
        base.close()
        file, offset, _ = next(block for number, block in enumerate(layout.blocks()) if number == bad[0])
        raise BaseDiffersError(
            f"{directory / layout.files[file].path} differs from the base version at byte {offset} "
            f"({len(bad)} blocks differ in all)"
        )
    return base
