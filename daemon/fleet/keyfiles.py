"""Key and certificate files: PEM, for the owner only, whole or not there."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from ..errors import HomeError, reason
from ..home import write_private


def write_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key, PKCS #8 PEM, mode 0600."""
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a file. Raises HomeError, also when others than the owner may read it."""
    data = read_file(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise HomeError(f"{path}: others may read this key; run 'chmod 600 {path}', and replace it if they did")
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise HomeError(f"{path}: not an Ed25519 private key in PEM; restore it from a backup, or make a new home")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The (first) certificate in a file. Raises HomeError."""
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates in a file, one at least. Raises HomeError."""
    try:
        return x509.load_pem_x509_certificates(read_file(path))
    except ValueError:
        raise HomeError(f"{path}: not a certificate in PEM; restore it from a backup, or make a new home") from None


def read_file(path: Path) -> bytes:
    """The bytes of a file of the home. Raises HomeError naming it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise HomeError(f"{path}: missing; restore it from a backup, or make a new home") from None
    except OSError as error:
        raise HomeError(f"{path}: cannot read it: {reason(error)}") from None
