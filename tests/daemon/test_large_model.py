"""A tensor of over 2^31 elements, and so of over 4 GiB, from a trainer's sparse file through real daemons."""

import json
import shutil

import numpy as np
import pytest
from blake3 import blake3

ELEMENTS = 2**31 + 12_345
BYTES = 2 * ELEMENTS
HERE = (0, 2**31 - 8, 2**31, 2**32 - 8, 2**32, BYTES - 8)
"""Where its bytes are not zero: at its ends, and around the places where 31 and 32 bits run out."""

WAIT_S = 900


def write_sparse(path, steps):
    """The checkpoint after so many steps: zeros, which take no room, but for a few values."""
    header = json.dumps({"wide": {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [0, BYTES]}}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + BYTES)
    data = np.memmap(path, np.uint8, "r+", offset=8 + len(header))
    for at in HERE:
        data[at : at + 8] = np.arange(8, dtype=np.uint8) * 2 + steps


def digest_of(path):
    return blake3(max_threads=1).update_mmap(path).digest()


def with_storage(node, **keys):
    config = node.home / "config.toml"
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    config.write_text(config.read_text().replace("[storage]", f"[storage]\n{lines}"))


@pytest.mark.slow
@pytest.mark.timeout(3 * WAIT_S)
def test_counts_and_offsets_over_32_bits_go_through_publish_transfer_and_rebuild(own_fleet, stream, tmp_path):
    fleet = own_fleet
    if shutil.disk_usage(fleet.root).free < 5 * BYTES:
        pytest.skip(f"needs {5 * BYTES >> 30} GiB free")
    node = fleet.add("node", "eu-west/b", start=False)
    fleet.head.stop()
    with_storage(fleet.head, slots=1)  # which makes two on the head
    with_storage(node, slots=1)
    fleet.head.start()
    node.start()
    directory = tmp_path / "trainer"
    directory.mkdir()
    for version in (1, 2):
        write_sparse(directory / "model.safetensors", version)
        line = ("publish", directory, "--stream", stream, "--json")
        result = json.loads(fleet.head.command(*line, timeout_s=WAIT_S).stdout)
        assert result["version"] == version
        assert result["full_bytes"] > BYTES
        assert result["patch_bytes"] < 50_000_000
        if version == 2:
            assert result["changed_elements"] == 4 * len(HERE)
        truth = digest_of(directory / "model.safetensors")
        for each in (fleet.head, node):
            assert each.client.wait(stream, version, WAIT_S) is not None, each.log.read_text()[-3000:]
            with each.client.lease(stream, version) as lease:
                assert digest_of(lease.path / "model.safetensors") == truth, each.name
