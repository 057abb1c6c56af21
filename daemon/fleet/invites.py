"""Invites: one small file each, so that `invite` works beside a running daemon and a crash forgets nothing.

A file holds the digest of the secret, never the secret. An invite is spent, durably, before the certificate
it buys is sent; the same key asking again with the same invite gets its answer again and spends nothing, so a
lost answer does not lose the invite.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...protocol.ids import digest
from ...protocol.join import Reason
from ..errors import HomeError, reason
from ..home import write_private

_KEEP_S = 7 * 86400.0  # a dead invite is kept so long, to tell "expired" from "unknown"


class Invite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One invite, as its file says. Ids and digests are in hex."""

    id: str
    secret_digest: str
    created_s: float
    """Unix time, as is `expires_s`."""
    expires_s: float
    uses_left: int
    spent_by: tuple[str, ...] = ()
    """Ids of the nodes that joined with it."""


class InviteRefusedError(Exception):
    """The invite does not let this node in."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name.lower())
        self.reason = reason


def create(folder: Path, *, ttl_s: float, uses: int, now_s: float) -> tuple[bytes, bytes]:
    """A new invite's id (8 bytes) and secret (32 bytes)."""
    invite, secret = secrets.token_bytes(8), secrets.token_bytes(32)
    with _lock(folder):
        for old in _all(folder):
            if now_s > old.expires_s + _KEEP_S:
                _path(folder, old.id).unlink(missing_ok=True)
        _write(
            folder,
            Invite(
                id=invite.hex(),
                secret_digest=digest(secret).hex(),
                created_s=now_s,
                expires_s=now_s + ttl_s,
                uses_left=uses,
            ),
        )
    return invite, secret


def redeem(folder: Path, invite: bytes, secret: bytes, node_id: bytes, *, now_s: float) -> None:
    """Spend one use of an invite for a node; durable on return. Raises InviteRefusedError."""
    with _lock(folder):
        held = _read(_path(folder, invite.hex()))
        expected = bytes.fromhex(held.secret_digest) if held else bytes(32)
        if not hmac.compare_digest(expected, digest(secret)) or held is None:
            raise InviteRefusedError(Reason.UNKNOWN)
        if now_s >= held.expires_s:
            raise InviteRefusedError(Reason.EXPIRED)
        if node_id.hex() in held.spent_by:
            return
        if held.uses_left < 1:
            raise InviteRefusedError(Reason.USED)
        _write(
            folder,
            msgspec.structs.replace(held, uses_left=held.uses_left - 1, spent_by=(*held.spent_by, node_id.hex())),
        )


def listing(folder: Path) -> list[Invite]:
    """All invites, oldest first."""
    return sorted(_all(folder), key=lambda invite: invite.created_s)


def withdraw(folder: Path, invite_id: str) -> bool:
    """Forget an invite; whether there was one."""
    with _lock(folder):
        path = _path(folder, invite_id)
        if not invite_id.isalnum() or not path.exists():
            return False
        path.unlink()
        return True


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One change at a time, between the daemon's threads and the command line."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HomeError(f"{folder}: cannot open it: {reason(error)}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _path(folder: Path, invite_id: str) -> Path:
    return folder / f"{invite_id}.json"


def _all(folder: Path) -> list[Invite]:
    return [invite for path in folder.glob("*.json") if (invite := _read(path))]


def _read(path: Path) -> Invite | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Invite)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HomeError(f"{path}: cannot read this invite: {error}; delete it") from None


def _write(folder: Path, invite: Invite) -> None:
    write_private(_path(folder, invite.id), msgspec.json.encode(invite))
