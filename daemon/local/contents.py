"""Endpoints for what is inside a version: its files, and its tensors by name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from ...protocol.layout import Layout, Role
from .conditions import strong_etag
from .endpoint import Call, Endpoint, Nothing
from .errors import (
    AmbiguousTensorError,
    InvalidRequestError,
    PreconditionFailedError,
    StorageFailedError,
    UnknownFileError,
    UnknownStreamError,
    UnknownTensorError,
    UnknownVersionError,
    UnsatisfiableRangeError,
)
from .model import FileInfo, FileList, TensorInfo, TensorList
from .ranged import serve_span
from .sendfile import FileSender, Span
from .service import LocalService, OpenVersion
from .streams import STREAM

BYTES: Final = "application/octet-stream"
VERSION: Final = STREAM + "/versions/{version}"
_KEPT_INDEXES: Final = 2
_DAMAGED: Final = "the slot is damaged: 'patchswarm verify --repair' mends it"
_LISTING_PROBLEMS: Final = (UnknownStreamError, UnknownVersionError, InvalidRequestError)
_BYTES_PROBLEMS: Final = (*_LISTING_PROBLEMS, UnsatisfiableRangeError, PreconditionFailedError, StorageFailedError)


class TensorQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query of GET …/tensors/{name}: the file, for a name that several files have."""

    file: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


@dataclass(frozen=True)
class Index:
    """A layout, by name."""

    files: dict[str, int]
    """Size in bytes by path."""
    tensors: dict[str, list[TensorInfo]]

    @classmethod
    def of(cls, layout: Layout) -> Index:
        """The index of `layout`."""
        tensors: dict[str, list[TensorInfo]] = {}
        for placed in layout.placed():
            region = placed.region
            if region.role is Role.TENSOR:
                info = TensorInfo(
                    name=region.name,
                    dtype=region.dtype,
                    shape=list(region.shape),
                    file=layout.files[placed.file].path,
                    offset=placed.offset,
                    size_bytes=region.size,
                )
                tensors.setdefault(region.name, []).append(info)
        return cls({file.path: file.size for file in layout.files}, tensors)


class ContentEndpoints:
    """Files and tensors of one node's versions."""

    def __init__(self, service: LocalService, sender: FileSender) -> None:
        self._service = service
        self._sender = sender
        self._indexes: dict[str, Index] = {}

    def table(self) -> tuple[Endpoint[Any, Any], ...]:
        """The endpoints."""
        return (
            Endpoint(
                "GET",
                VERSION + "/files",
                "The files of a version",
                self.files,
                Nothing,
                Nothing,
                FileList,
                problems=_LISTING_PROBLEMS,
            ),
            Endpoint(
                "GET",
                VERSION + "/files/{name:.+}",
                "One file, or a range of it",
                self.file,
                Nothing,
                Nothing,
                media=BYTES,
                problems=(*_BYTES_PROBLEMS, UnknownFileError),
            ),
            Endpoint(
                "GET",
                VERSION + "/tensors",
                "The tensors of a version",
                self.tensors,
                Nothing,
                Nothing,
                TensorList,
                problems=_LISTING_PROBLEMS,
            ),
            Endpoint(
                "GET",
                VERSION + "/tensors/{name:.+}",
                "The raw bytes of one tensor, or a range of them",
                self.tensor,
                TensorQuery,
                Nothing,
                media=BYTES,
                problems=(*_BYTES_PROBLEMS, UnknownTensorError, AmbiguousTensorError),
            ),
        )

    async def files(self, call: Call[Nothing, Nothing]) -> FileList:
        """GET …/files."""
        async with self._service.open_version(call.stream, call.version) as opened:
            index = await self._index(opened)
            files = [FileInfo(path=path, size_bytes=size) for path, size in index.files.items()]
            return FileList(version=opened.info, files=files)

    async def file(self, call: Call[Nothing, Nothing]) -> web.StreamResponse:
        """GET …/files/{name}. Only names in the layout exist, so nothing else in or outside the slot is reached."""
        async with self._service.open_version(call.stream, call.version) as opened:
            size = (await self._index(opened)).files.get(call.name)
            if size is None:
                raise UnknownFileError(f"version {opened.info.version} of {call.stream!r} has no file {call.name!r}")
            etag = strong_etag(opened.info.manifest, "file", call.name)
            return await self._serve(call.request, opened, call.name, (0, size), etag, {})

    async def tensors(self, call: Call[Nothing, Nothing]) -> TensorList:
        """GET …/tensors."""
        async with self._service.open_version(call.stream, call.version) as opened:
            index = await self._index(opened)
            return TensorList(version=opened.info, tensors=[info for infos in index.tensors.values() for info in infos])

    async def tensor(self, call: Call[TensorQuery, Nothing]) -> web.StreamResponse:
        """GET …/tensors/{name}."""
        async with self._service.open_version(call.stream, call.version) as opened:
            wanted = call.query.file
            found = [
                info
                for info in (await self._index(opened)).tensors.get(call.name, [])
                if wanted is None or info.file == wanted
            ]
            if not found:
                where = f" in file {wanted!r}" if wanted is not None else ""
                raise UnknownTensorError(
                    f"version {opened.info.version} of {call.stream!r} has no tensor {call.name!r}{where}"
                )
            if len(found) > 1:
                files = [info.file for info in found]
                raise AmbiguousTensorError(
                    f"tensor {call.name!r} is in {len(files)} files", remedy="name one with ?file=", files=files
                )
            info = found[0]
            etag = strong_etag(opened.info.manifest, "tensor", info.file, info.name)
            headers = {"Patchswarm-Dtype": info.dtype, "Patchswarm-Shape": msgspec.json.encode(info.shape).decode()}
            place = (info.offset, info.offset + info.size_bytes)
            return await self._serve(call.request, opened, info.file, place, etag, headers)

    async def _index(self, opened: OpenVersion) -> Index:
        """The version's index, made once; a few are kept."""
        manifest = opened.info.manifest
        if manifest not in self._indexes:
            index = await asyncio.to_thread(Index.of, opened.layout)
            while len(self._indexes) >= _KEPT_INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[manifest] = index
            return index
        return self._indexes[manifest]

    async def _serve(
        self,
        request: web.Request,
        opened: OpenVersion,
        path: str,
        place: tuple[int, int],
        etag: str,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        """Answer with bytes `place` (first, after the last) of a file, as far as the request's headers want them."""
        headers = {
            "Patchswarm-Epoch": str(opened.info.epoch),
            "Patchswarm-Version": str(opened.info.version),
            "Patchswarm-Proven": "true" if opened.info.proven else "false",
            **headers,
        }
        begin, end = place
        with _open(opened, path, end) as descriptor:
            return await serve_span(
                request, self._sender, Span(descriptor, begin, end - begin), etag, headers, opened.voided
            )


@contextlib.contextmanager
def _open(opened: OpenVersion, path: str, least_bytes: int) -> Iterator[int]:
    """A descriptor of one of the version's files. Raises StorageFailedError when the slot does not have it whole."""
    try:
        descriptor = os.open(opened.path / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise StorageFailedError(f"{opened.path / path}: {error.strerror}", remedy=_DAMAGED) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size < least_bytes:
            raise StorageFailedError(f"{opened.path / path}: not the whole file any more", remedy=_DAMAGED)
        yield descriptor
    finally:
        os.close(descriptor)
