"""Bucket: one place in an object store, on a web server or in a folder. Everything that crosses obstore is here.

Credentials are obstore's own business: it finds them in the environment and in the files where each cloud's tools keep
theirs. What it says of an error may quote URLs, so only the kind of it is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import ObjectStore, from_url

from ..errors import DaemonError
from ..exits import Exit
from .url import WEB

CONNECT_TIMEOUT_S: Final = 10
REQUEST_TIMEOUT_S: Final = 120
"""For one chunk of 4 MiB: 35 kB/s."""

RETRIES: Final = 2

_STATUS: Final = re.compile(r"status code: (\d{3}[ A-Za-z]*)")


class BucketError(DaemonError):
    """The store does not do what it was asked."""

    remedy = "see docs/mirror.md for what the store needs, and its own log"


class NotThereError(BucketError):
    """There is no object of this name."""

    remedy = "wait until the head has filled the mirror, or check mirror.url"
    exit = Exit.NOT_FOUND


class TooLongError(BucketError):
    """An object is longer than it may be."""

    remedy = "see who writes there: it is no object of patchswarm's"
    exit = Exit.BAD_INPUT


@dataclass(frozen=True, slots=True)
class Got:
    """An object's bytes, and the tag by which the store tells whether it has changed; "" when it gives none."""

    data: bytes
    tag: str


class Bucket:
    """The store at `url`, opened at the first use."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._scheme = urlsplit(url).scheme
        self._store: ObjectStore | None = None

    @property
    def is_writable(self) -> bool:
        """Whether objects can be put there: a web server is only read."""
        return self._scheme not in WEB

    def _open(self) -> ObjectStore:
        if self._store is None:
            if self._scheme == "file":
                if not Path(
                    unquote(urlsplit(self.url).path)
                ).is_dir():  # a mount that is missing must not be written to
                    raise BucketError(f"{self.url}: no such folder; make it, or mount it")
                self._store = from_url(self.url)
            else:
                self._store = from_url(
                    self.url,
                    client_options={
                        "allow_http": True,  # what lies there is sealed
                        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                        "timeout": f"{REQUEST_TIMEOUT_S}s",
                    },
                    retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)},
                )
        return self._store

    async def get(self, path: str, limit_bytes: int, tag: str = "") -> Got | None:
        """An object of at most so many bytes; None when it still has `tag`. Raises BucketError."""
        try:
            found = await obstore.get_async(self._open(), path, options={"if_none_match": tag} if tag else None)
            data = bytearray()
            async for part in found.stream():
                if len(data) + len(part) > limit_bytes:
                    raise TooLongError(f"{self.url}/{path}: longer than {limit_bytes} bytes")
                data += part
        except obstore.exceptions.NotModifiedError:
            return None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._told(path, error) from None
        return Got(bytes(data), found.meta["e_tag"] or "")

    async def put(self, path: str, data: bytes | bytearray) -> None:
        """Write an object, in the place of an earlier one. Raises BucketError."""
        try:
            await obstore.put_async(self._open(), path, data)
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._told(path, error) from None

    async def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; no error for those that are gone. Raises BucketError."""
        for path in paths:
            try:
                await obstore.delete_async(self._open(), path)
            except FileNotFoundError:
                continue
            except (obstore.exceptions.BaseError, OSError) as error:
                raise self._told(path, error) from None

    async def sizes(self, folder: str) -> dict[str, int]:
        """Size of every object in a folder and those below, by the last part of its path. Raises BucketError."""
        try:
            return {
                meta["path"].rpartition("/")[2]: meta["size"]
                async for batch in obstore.list(self._open(), f"{folder}/")
                for meta in batch
            }
        except FileNotFoundError:
            return {}
        except (obstore.exceptions.BaseError, OSError) as error:
            raise self._told(folder, error) from None

    def _told(self, path: str, error: Exception) -> BucketError:
        """What went wrong, without what obstore quotes."""
        if isinstance(error, FileNotFoundError):
            return NotThereError(f"{self.url}/{path}: not there")
        status = _STATUS.search(str(error))
        said = f"the store answers {status[1].strip()}" if status else _KINDS.get(type(error).__name__, "no answer")
        return BucketError(f"{self.url}/{path}: {said}")


_KINDS: Final = {
    "PermissionDeniedError": "not allowed; are the credentials in the environment those for this store?",
    "PermissionError": "not allowed",
    "UnauthenticatedError": "no valid credentials in the environment",
    "NotSupportedError": "the store cannot do this",
    "InvalidPathError": "no such path can be",
    "OSError": "the folder cannot be used",
}
