"""URLs of mirrors: which there may be."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

WEB: Final = ("http", "https")
"""Schemes of stores that are only read."""

SCHEMES: Final = ("s3", "gs", "az", "file", *WEB)


def check_url(url: str) -> None:
    """Raise ValueError unless `url` is one that a mirror may have. What it says quotes no credentials."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("url holds credentials or a query: give them in the environment, as docs/mirror.md says")
    if parts.scheme not in SCHEMES:
        raise ValueError(f"url {url!r} is no mirror: write s3://BUCKET/PATH, gs://…, az://…, file:///DIR or https://…")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError(f"url {url!r} is no absolute folder: write file:///DIR")
    if parts.scheme != "file" and not parts.netloc:
        raise ValueError(f"url {url!r} names no bucket or host")
