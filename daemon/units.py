"""Sizes, rates, durations and addresses as people write them."""

from __future__ import annotations

import re
from typing import Final, Self

_NUMBER: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]*)\s*")
_PREFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZES: Final = {
    "": 1,
    **{prefix + "b": factor for prefix, factor in _PREFIXES.items()},
    **{prefix + "ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_BIT_RATES: Final = {prefix + "bit/s": factor for prefix, factor in _PREFIXES.items()}
_BYTE_RATES: Final = {unit + "/s": factor for unit, factor in _SIZES.items() if unit}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Size(int):
    """Bytes. Written "512MiB", "2GB" or as a plain number."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """The size in `value`. Raises ValueError."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
            factor = _SIZES.get(match[2].lower())
            if factor is not None:
                return cls(round(float(match[1]) * factor))
        raise ValueError(f"{value!r} is not a size; write for example '512MiB' or '2GB'")

    def __str__(self) -> str:
        return _largest_unit(self, [("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)]) or f"{self:d}"


class Rate(int):
    """Bytes per second, 0 for no limit. Written "2Gbit/s", "250MB/s", or "" for no limit."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """The rate in `value`. Raises ValueError."""
        if value == "":
            return cls(0)
        if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
            unit, amount = match[2].lower(), float(match[1])
            if unit in _BIT_RATES and amount:
                return cls(max(1, round(amount * _BIT_RATES[unit] / 8)))
            if unit in _BYTE_RATES and amount:
                return cls(max(1, round(amount * _BYTE_RATES[unit])))
        raise ValueError(f"{value!r} is not a rate; write for example '2Gbit/s' or '250MB/s', or '' for no limit")

    def __str__(self) -> str:
        if not self:
            return ""
        bits = [("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)]
        return _largest_unit(self * 8, bits) or f"{self * 8:d}bit/s"


def _largest_unit(value: int, units: list[tuple[str, int]]) -> str:
    """`value` in the largest unit that divides it, so that what is written reads back the same; "" if none does."""
    return next((f"{value // factor}{unit}" for unit, factor in units if value and value % factor == 0), "")


def parse_duration_s(text: str) -> float:
    """Seconds in "90", "90s", "24h", "1h30m" or "7d". Raises ValueError."""
    text = text.strip()
    match = _NUMBER.fullmatch(text)
    if match and match[2] in _SECONDS:
        return float(match[1]) * _SECONDS[match[2]]
    parts = _DURATION_PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(f"{text!r} is not a duration; write for example '90s', '24h' or '1h30m'")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port in "HOST:PORT"; an IPv6 host stands in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    shaped = bool(colon and host) and not re.search(r"[\s\[\]/@]", host) and (bracketed or ":" not in host)
    if not shaped or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535 or len(text) > 128:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT, for example '10.0.0.5:7340' or '[::1]:7340'")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_wildcard(host: str) -> bool:
    """Whether listening on `host` means every interface, so that it is no address to dial."""
    return host in {"0.0.0.0", "::", "*"}  # noqa: S104 -- compared, never bound here


def format_size(size_bytes: float) -> str:
    """`size_bytes` for people, three digits: "1.38 MiB"."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
    return f"{size_bytes / 1024:.4g} TiB"


def format_duration(seconds: float) -> str:
    """`seconds` for people: "0.42 s", "3 min", "2 h", "5 d"."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"
