"""The CA's key away from the nodes: a folder of its own, on a stick or another machine, opened for one command."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..errors import BadInputError, HomeError, RefusedError, reason
from ..home import write_private
from . import authority
from .keyfiles import read_certificate, read_key, write_key

CA_KEY: Final = "ca.key"
CA_CERTIFICATE: Final = "ca.crt"


def check_free(folder: Path) -> None:
    """Raise BadInputError when there is a CA in this folder already."""
    if (folder / CA_KEY).exists():
        raise BadInputError(f"{folder}: holds the key of a CA already; choose another --ca-dir")


def create(folder: Path, key: Ed25519PrivateKey, certificate: x509.Certificate) -> None:
    """Write a new CA. Raises HomeError when the folder cannot be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HomeError(f"{folder}: cannot make it: {reason(error)}") from None
    write_private(folder / CA_CERTIFICATE, authority.to_pem([certificate]))
    write_key(folder / CA_KEY, key)


def load(folder: Path, expected: x509.Certificate) -> Ed25519PrivateKey:
    """The CA's key in a folder. Raises HomeError for a file that is missing or damaged, RefusedError for another CA."""
    key, certificate = read_key(folder / CA_KEY), read_certificate(folder / CA_CERTIFICATE)
    if certificate != expected or key.public_key() != certificate.public_key():
        raise RefusedError(f"{folder}: holds the key of another cluster's CA than this home's; give the right --ca-dir")
    return key
