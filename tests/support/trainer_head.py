"""A head's daemon as its trainer sees it, and a reader of what it was given that shares no code with the project."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import uvloop
from support.local_service import STREAM

from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.model import PublishResult, VersionInfo
from patchswarm.daemon.local.service import OpenVersion
from patchswarm.protocol.ids import digest
from patchswarm.storage.checkpoint import scan


class TrainerHead:
    """A local API whose publishes are copied, laid out and become the current version.

    `failure` is what the next publish raises, once.
    """

    def __init__(self, api):
        self.api = api
        self.socket = api.api.socket
        self.client = Client(self.socket)
        self.failure = None
        self.requests = []
        api.service.publishing = self._publish

    async def _publish(self, request, _progress):
        self.requests.append(request)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        service = self.api.service
        version = (service.current or 0) + 1
        path = service.root / STREAM / f"v{version}"
        with scan(Path(request.directory)) as source:  # refuses what the daemon refuses
            await asyncio.to_thread(shutil.copytree, request.directory, path)
            source.check_unchanged()
        with scan(path) as source:
            layout = source.layout
        info = VersionInfo(
            stream=STREAM,
            epoch=1,
            version=version,
            label=request.label,
            manifest=digest(layout.encode() + bytes([version])).hex(),
            size_bytes=layout.size,
            proven=True,
            path=str(path),
        )
        async with service.changed:
            service.known[version] = OpenVersion(path, layout, info)
            service.current = version
            service.changed.notify_all()
        return PublishResult(
            stream=STREAM,
            epoch=1,
            version=version,
            label=request.label,
            manifest=info.manifest,
            changed_fraction=1.0,
            changed_elements=1,
            full_bytes=layout.size,
            patch_bytes=layout.size,
            ratio=1.0,
            chunks=1,
            seconds={},
        )

    def path(self, version=None):
        """Where the files of a version are, the newest without a number."""
        return self.api.service.known[version or self.api.service.current].path

    def labels(self):
        """Labels of all versions, oldest first."""
        return [self.api.service.known[number].info.label for number in sorted(self.api.service.known)]

    def files(self, version=None):
        """Names of a version's files."""
        path = self.path(version)
        return sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())


def header(path):
    """The JSON header of a safetensors file."""
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def tensors_of(folder):
    """dtype, shape and bytes of every tensor in a folder's safetensors files, read by hand."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in header(path).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                assert name not in found, f"{name} is in two files"
                found[name] = (entry["dtype"], tuple(entry["shape"]), data[start + first : start + last])
    return found


@pytest.fixture
def loop_factory():
    """These tests are about what is published; the API itself is tested under both event loops."""
    return uvloop.new_event_loop


@pytest.fixture
def head(api):
    return TrainerHead(api)


@pytest.fixture
def staging(tmp_path):
    return tmp_path / "staging"
