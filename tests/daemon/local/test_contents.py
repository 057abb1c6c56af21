"""Files and tensors of a version over HTTP: the right bytes, only the version's, and nobody holds on for ever."""

import dataclasses
import http.client
import json
import os
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from patchswarm.protocol.ids import digest

V1 = "/v1/streams/qwen/versions/1"
NAMES = ["config.json", "empty.txt", "model-1.safetensors", "model-2.safetensors", "tokenizer/ключ и замок.json"]
BIG = os.urandom(16 * 1024 * 1024)


def slot(api, version=1) -> Path:
    return api.service.known[version].path


def test_the_files_of_a_version_are_listed_with_their_sizes(api):
    api.commit(1)
    listing = api.ask("GET", V1 + "/files").json()
    assert listing["version"]["manifest"] == api.service.known[1].info.manifest
    assert listing["files"] == [{"path": name, "size_bytes": (slot(api) / name).stat().st_size} for name in NAMES]


def test_every_file_arrives_byte_for_byte_over_one_connection(api):
    api.commit(1)
    connection = api.connection()
    for name in NAMES:
        answer = api.ask("GET", f"{V1}/files/{urllib.parse.quote(name)}", connection=connection)
        assert answer.status == 200
        assert answer.body == (slot(api) / name).read_bytes()
        assert answer.headers["content-length"] == str(len(answer.body))
        assert answer.headers["patchswarm-version"] == "1"
        assert answer.headers["patchswarm-proven"] == "true"


def test_head_tells_the_size_and_sends_nothing(api):
    api.commit(1)
    connection = api.connection()
    for name in NAMES:
        target = f"{V1}/files/{urllib.parse.quote(name)}"
        head = api.ask("HEAD", target, connection=connection)
        full = api.ask("GET", target, connection=connection)
        assert head.body == b""
        assert head.headers["content-length"] == str(len(full.body))
        assert head.headers["etag"] == full.headers["etag"]


def test_current_is_whatever_is_current(api):
    api.commit(1)
    api.commit(2)
    answer = api.ask("GET", "/v1/streams/qwen/versions/current/files/config.json")
    assert answer.json() == {"seed": 2}
    assert answer.headers["patchswarm-version"] == "2"


def test_a_large_file_arrives_whole(api):
    api.commit(1, more={"big.bin": BIG})
    assert digest(api.ask("GET", V1 + "/files/big.bin").body) == digest(BIG)


def test_a_large_file_arrives_whole_over_tcp_too(api):
    api.commit(1, more={"big.bin": BIG})
    connection = http.client.HTTPConnection(*api.api.tcp, timeout=30)
    api.connections.append(connection)
    for _ in range(2):
        token = {"Authorization": "Bearer a-token-for-tests-only"}
        answer = api.ask("GET", V1 + "/files/big.bin", headers=token, connection=connection)
        assert digest(answer.body) == digest(BIG)


@pytest.mark.parametrize("version", ["x", "-1", "1.0", "9223372036854775808", "9" * 5000, "٣"])
def test_a_version_that_is_no_number_is_named(api, version):
    answer = api.ask("GET", f"/v1/streams/qwen/versions/{urllib.parse.quote(version)}/files")
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert version[:40] in answer.json()["detail"]


def test_a_version_that_is_not_here_is_a_problem(api):
    answer = api.ask("GET", V1 + "/files/config.json")
    assert (answer.status, answer.problem) == (404, "unknown-version")


@pytest.mark.parametrize(
    "path",
    [
        "../v1/config.json",
        "..%2Fv1%2Fconfig.json",
        "%2e%2e/v1/config.json",
        "tokenizer/../config.json",
        "tokenizer/%2e%2e/config.json",
        "./config.json",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "..%2F..%2F..%2F..%2F..%2Fetc%2Fpasswd",
        "config.json/",
        "config.json%00",
        "tokenizer",
        ".patchswarm-slot",
        "CONFIG.JSON",
    ],
)
def test_only_names_in_the_layout_exist(api, path):
    api.commit(1)
    answer = api.ask("GET", f"{V1}/files/{path}")
    assert (answer.status, answer.problem) == (404, "unknown-file")


@pytest.mark.parametrize("harm", ["symlink", "missing", "directory", "short"])
def test_a_damaged_slot_is_a_problem_and_leads_nowhere_else(api, tmp_path, harm):
    api.commit(1)
    path = slot(api) / "config.json"
    content = path.read_bytes()
    path.unlink()
    if harm == "symlink":
        (tmp_path / "secret").write_bytes(content)
        path.symlink_to(tmp_path / "secret")
    elif harm == "directory":
        path.mkdir()
    elif harm == "short":
        path.write_bytes(content[:-1])
    answer = api.ask("GET", V1 + "/files/config.json")
    assert (answer.status, answer.problem) == (507, "storage-failed")
    assert str(path) in answer.json()["detail"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    name=st.sampled_from(["model-1.safetensors", "config.json", "empty.txt"]),
    first=st.none() | st.integers(0, 5000),
    last=st.none() | st.integers(0, 5000),
)
def test_ranges_are_slices_of_the_file(api, name, first, last):
    if not api.service.known:
        api.commit(1)
    content = (slot(api) / name).read_bytes()
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    connection = api.connections[0] if api.connections else None
    answer = api.ask("GET", f"{V1}/files/{name}", headers={"Range": header}, connection=connection)
    if answer.status == 416:
        assert answer.problem == "range-not-satisfiable"
        assert answer.headers["content-range"] == f"bytes */{len(content)}"
        assert last == 0 if first is None else first >= len(content)
    elif answer.status == 206:
        wanted = content[-last:] if first is None else content[first : None if last is None else last + 1]
        assert answer.body == wanted
        start = len(content) - len(wanted) if first is None else first
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(wanted) - 1}/{len(content)}"
    else:
        assert answer.status == 200
        assert answer.body == content
        pointless = first is None and (last is None or not content)
        assert pointless or (last is not None and last < first)


def test_a_reader_that_has_the_bytes_is_told_so(api):
    api.commit(1)
    etag = api.ask("GET", V1 + "/files/config.json").headers["etag"]
    answer = api.ask("GET", V1 + "/files/config.json", headers={"If-None-Match": etag})
    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
    api.commit(2)
    changed = api.ask("GET", "/v1/streams/qwen/versions/current/files/config.json", headers={"If-None-Match": etag})
    assert changed.status == 200


def test_a_range_of_other_content_is_not_mixed_in(api):
    api.commit(1)
    etag = api.ask("GET", V1 + "/files/config.json").headers["etag"]
    target = "/v1/streams/qwen/versions/current/files/config.json"
    same = api.ask("GET", target, headers={"Range": "bytes=1-3", "If-Range": etag})
    assert (same.status, same.body) == (206, (slot(api) / "config.json").read_bytes()[1:4])
    api.commit(2)
    other = api.ask("GET", target, headers={"Range": "bytes=1-3", "If-Range": etag})
    assert (other.status, other.body) == (200, (slot(api, 2) / "config.json").read_bytes())
    failed = api.ask("GET", target, headers={"If-Match": etag})
    assert (failed.status, failed.problem) == (412, "precondition-failed")


def tensors_of(path: Path) -> dict[str, dict]:
    return dict(deserialize(path.read_bytes()))


def test_every_tensor_arrives_as_the_safetensors_library_reads_it(api):
    api.commit(1)
    listing = api.ask("GET", V1 + "/tensors").json()
    assert len(listing["tensors"]) == 8
    for info in listing["tensors"]:
        truth = tensors_of(slot(api) / info["file"])[info["name"]]
        assert info["shape"] == list(truth["shape"])
        assert info["dtype"] == truth["dtype"]
        file = (slot(api) / info["file"]).read_bytes()
        assert file[info["offset"] : info["offset"] + info["size_bytes"]] == bytes(truth["data"])
        query = "?" + urllib.parse.urlencode({"file": info["file"]})
        answer = api.ask("GET", f"{V1}/tensors/{urllib.parse.quote(info['name'])}{query}")
        assert answer.status == 200
        assert answer.body == bytes(truth["data"])
        assert answer.headers["patchswarm-dtype"] == info["dtype"]
        assert json.loads(answer.headers["patchswarm-shape"]) == info["shape"]


def test_a_range_of_a_tensor_counts_from_its_own_start(api):
    api.commit(1)
    target = V1 + "/tensors/model.embed/weight"
    whole = api.ask("GET", target).body
    part = api.ask("GET", target, headers={"Range": "bytes=100-199"})
    assert (part.status, part.body) == (206, whole[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(whole)}"
    past = api.ask("GET", target, headers={"Range": f"bytes={len(whole)}-"})
    assert past.status == 416


def test_a_name_that_two_files_have_needs_the_file(api):
    api.commit(1)
    answer = api.ask("GET", V1 + "/tensors/twice")
    assert (answer.status, answer.problem) == (409, "ambiguous-tensor")
    files = answer.json()["context"]["files"]
    assert [api.ask("GET", f"{V1}/tensors/twice?file={file}").body for file in files] == [b"\1\1\2", b"\1\3\4"]


def test_an_unknown_tensor_is_named(api):
    api.commit(1)
    answer = api.ask("GET", V1 + "/tensors/model.lm_head")
    assert (answer.status, answer.problem) == (404, "unknown-tensor")
    assert "'model.lm_head'" in answer.json()["detail"]
    assert api.ask("GET", V1 + "/tensors/scalar?file=model-2.safetensors").problem == "unknown-tensor"


def start_reading(api, name="big.bin"):
    """A reader that has asked for a file and reads nothing of it, and the transfer under way."""
    connection = api.connect()
    connection.sendall(f"GET {V1}/files/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert connection.recv(15) == b"HTTP/1.1 200 OK"
    return connection


def drain(connection) -> int:
    """Bytes until the connection ends."""
    count = 0
    try:
        while data := connection.recv(1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    connection.close()
    return count


def test_a_reader_holds_the_version_until_it_hangs_up(api):
    api.commit(1, more={"big.bin": BIG})
    connection = start_reading(api)
    api.wait_for(lambda service: service.open_readers == 1)
    connection.close()
    api.wait_for(lambda service: service.open_readers == 0)


def test_stalled_readers_take_no_thread_from_the_others(api):
    api.commit(1, more={"big.bin": BIG})
    stalled = [start_reading(api) for _ in range(8)]
    assert api.ask("GET", V1 + "/files/config.json").json() == {"seed": 1}
    assert digest(api.ask("GET", V1 + "/files/big.bin").body) == digest(BIG)
    for connection in stalled:
        connection.close()
    api.wait_for(lambda service: service.open_readers == 0)


class TestImpatience:
    @pytest.fixture
    def local_config(self, local_config):
        return dataclasses.replace(local_config, read_timeout_s=0.2)

    def test_a_reader_that_stalls_is_cut_and_lets_go_of_the_version(self, api):
        api.commit(1, more={"big.bin": BIG})
        connection = start_reading(api)
        api.wait_for(lambda service: service.open_readers == 0)
        assert drain(connection) < len(BIG)
        (entry,) = api.logged
        assert entry["reason"] == "the reader took nothing for 0.2 s"


def test_a_transfer_is_cut_when_the_version_is_withdrawn(api):
    api.commit(1, more={"big.bin": BIG})
    connection = start_reading(api)
    api.service.known[1].voided.set()
    assert drain(connection) < len(BIG)
    api.wait_for(lambda service: service.open_readers == 0)


def test_a_file_cut_short_under_the_reader_cuts_the_connection(api):
    api.commit(1, more={"big.bin": BIG})
    connection = start_reading(api)
    os.truncate(slot(api) / "big.bin", len(BIG) // 2)
    assert drain(connection) < len(BIG)
    api.wait_for(lambda service: service.open_readers == 0)


def test_the_api_stops_though_callers_still_wait(api):
    """The fixture stops it, and fails when that takes too long or logs an error."""
    api.commit(1, more={"big.bin": BIG})
    reading = start_reading(api)
    polling = api.connect()
    polling.sendall(b"GET /v1/streams/qwen/version?min=3&wait=3600 HTTP/1.1\r\nHost: x\r\n\r\n")
    api.wait_for(lambda service: service.open_readers == 1 and service.waiters == 1)
    api.stop()
    assert drain(reading) < len(BIG)
    assert drain(polling) == 0
    assert api.service.open_readers == api.service.waiters == 0
