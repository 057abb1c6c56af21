"""docs/security.md claims nothing that no test carries out, and its limits are those of the code."""

import re
from pathlib import Path

import pytest

from patchswarm.daemon import watch
from patchswarm.daemon.fleet import authority, doors, lanes, listener, peer, reach
from patchswarm.daemon.local import endpoint
from patchswarm.protocol import (
    allowance,
    census,
    conduct,
    framing,
    gossip,
    join,
    layout,
    members,
    offers,
    seal,
    series,
    signed,
    spread,
    swarm,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def _tests_in(folder):
    """Names of the tests in a folder, and of those in each of its files."""
    found = {}
    for path in folder.rglob("test_*.py"):
        found[str(path.relative_to(ROOT))] = set(
            re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
        )
    return found


def test_every_test_that_the_page_names_exists_where_it_says():
    found = _tests_in(ROOT / "tests")
    here = set().union(*(names for path, names in found.items() if path.startswith("tests/security/")))
    place, claimed = "", 0
    for where, name in re.findall(r"`(?:([\w/.]+\.py|…)::)?(test_\w+)`", PAGE):
        place = where if where not in ("", "…") else place
        assert name in (found[place] if where else here), name
        claimed += 1
    assert claimed >= 60


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("frame of the control", (f"{framing.MAX_FRAME_BYTES // 1024} KiB; {join.MAX_JOIN_BYTES // 1024} KiB",)),
        ("signed object; header", (f"{signed.MAX_SIGNED_BYTES:,}".replace(",", " "),)),
        ("handshake", (f"{listener.FIRST_BYTES_S:.0f} s", f"{swarm.HELLO_S:.0f} s")),
        ("silence", (f"{swarm.SILENT_S:.0f} s",)),
        ("half-open connections;", (f"{listener.MAX_HALF_OPEN}; {listener.MAX_HALF_OPEN_EACH}",)),
        ("joiners", (str(doors.MAX_JOINERS),)),
        ("control connections of one node", (f"{doors.MAX_LINKS};",)),
        ("a lane's offer", (f"{lanes.OFFER_S:.0f} s",)),
        ("requests queued", (str(peer.MAX_SERVING),)),
        ("what a peer says", (f"{allowance.RATE:.0f} words a second, {allowance.BURST:.0f} at once",)),
        ("what a peer says", (f"count {allowance.REFUSAL:.0f} each",)),
        ("control bytes", (f"{peer.MAX_QUEUED_BYTES >> 20} MiB",)),
        ("signed objects from", (f"{spread.TAKE_BYTES >> 20} MiB, {spread.GIVE_BYTES >> 20} MiB",)),
        ("records of one node", (str(census.MAX_RECORDS),)),
        (
            "nodes, streams",
            (f"{census.MAX_NODES // 1000} 000, {gossip.MAX_STREAMS}, {members.MAX_REVOKED // 1000} 000",),
        ),
        ("headers of one epoch", (f"{gossip.MAX_HEADERS // 1000} {gossip.MAX_HEADERS % 1000}", str(gossip.WINDOW))),
        ("headers whose", (str(gossip.MAX_EARLY),)),
        ("a peer's HAVE", (str(offers.MAX_SERIES), f"{offers.MAX_HAVES_BYTES >> 20} MiB")),
        ("chunk; chunks", (f"2^{series.MAX_CHUNKS.bit_length() - 1}",)),
        ("list after", (f"{seal.MAX_BLOB_BYTES >> 20} MiB",)),
        ("files, regions", (f"{layout.MAX_FILES // 1000} 000, {layout.MAX_REGIONS // 10**6} 000 000",)),
        ("dials to one host", (f"{reach.BURST}, then one in {reach.EVERY_S:.0f} s",)),
        ("body of a request", (f"{endpoint.MAX_BODY_BYTES // 1024} KiB",)),
    ],
)
def test_a_limit_is_the_codes(row, values):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    assert all(value in line for value in values), line


def test_times_in_the_text_are_the_codes():
    assert f"for {authority.NODE_VALIDITY.days} days" in PAGE
    assert f"at least every {members.REFRESH_S // 60} minutes" in PAGE
    assert f"silent for {members.LIVELY_S // 60} minutes" in PAGE
    assert f"after {members.GONE_S // 3600} hours" in PAGE
    assert f"from {watch.FROZEN_S:.0f} s on an alarm" in PAGE
    assert f"benched for {conduct.BENCH_S:.0f} s, each time for twice as long" in PAGE
