"""Sizes, rates, durations and addresses as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon.units import (
    Rate,
    Size,
    format_address,
    format_duration,
    format_size,
    is_wildcard,
    parse_address,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("512MiB", 2**29), ("2GB", 2 * 10**9), ("1.5 KiB", 1536), ("4096", 4096), (4096, 4096), ("0", 0), ("3b", 3)],
)
def test_sizes(text, size_bytes):
    assert Size.parse(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 parsec", "1e9", "0x10", "1,5GB", -3, True, None, 1.5, ["1"]])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size; write for example '512MiB'"):
        Size.parse(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("2Gbit/s", 250_000_000), ("250MB/s", 250_000_000), ("1MiB/s", 2**20), ("8 bit/s", 1), ("", 0)],
)
def test_rates(text, bytes_per_s):
    assert Rate.parse(text) == bytes_per_s


@pytest.mark.parametrize("text", ["0", "5", "5MB", "0Gbit/s", "fast", "1Gbit", 5, None])
def test_what_is_no_rate(text):
    with pytest.raises(ValueError, match="is not a rate; write for example '2Gbit/s'"):
        Rate.parse(text)


@given(st.integers(0, 2**50))
def test_a_size_reads_back_as_it_is_written(size_bytes):
    assert Size.parse(str(Size(size_bytes))) == size_bytes


@given(st.integers(0, 2**40))
def test_a_rate_reads_back_as_it_is_written(bytes_per_s):
    assert Rate.parse(str(Rate(bytes_per_s))) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("24h", 86400), ("1h30m", 5400), ("7d", 604800), ("250ms", 0.25), (" 1.5 h ", 5400)],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "1y", "-1h", "1h 2x", "soon"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.5:7340", "10.0.0.5", 7340), ("head.example:1", "head.example", 1), ("[::1]:65535", "::1", 65535)],
)
def test_addresses_read_and_write(text, host, port):
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        *["", "host", ":7340", "host:", "host:0", "host:65536", "host:-1", "host:7x", "h:٣"],
        *["::1:7340", "[]:1", "[::1]", "a b:1", "u@h:1", "http://h:1", "h" * 130 + ":1"],
    ],
)
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*"])
def test_wildcards_are_no_address_to_dial(host):
    assert is_wildcard(host)
    assert not is_wildcard("127.0.0.1")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20 * 90.9, "90.9 MiB"), (2**40 * 500, "500 TiB")],
)
def test_sizes_for_people(size_bytes, text):
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4211, "0.421 s"), (600, "10 min"), (86400, "24 h"), (86400 * 9, "9 d")]
)
def test_durations_for_people(seconds, text):
    assert format_duration(seconds) == text
