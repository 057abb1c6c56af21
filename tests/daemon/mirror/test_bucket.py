"""One store seen through obstore: what is put is got, what is wrong is one clear line without credentials."""

import contextlib
import socket
import threading

import pytest
from support.mirrors import S3_BUCKET, S3_ENVIRONMENT, s3_server, web_server

from patchswarm.daemon.config import Config
from patchswarm.daemon.errors import ConfigError
from patchswarm.daemon.home import Home
from patchswarm.daemon.mirror.bucket import Bucket, BucketError, NotThereError, TooLongError
from patchswarm.daemon.mirror.url import check_url


@pytest.fixture(params=["file", "s3"])
def bucket(request, tmp_path, monkeypatch):
    with contextlib.ExitStack() as stack:
        if request.param == "file":
            (tmp_path / "a store").mkdir()
            yield Bucket(f"file://{tmp_path}/a%20store")
        else:
            for name, value in stack.enter_context(s3_server(tmp_path / "s3")).items():
                monkeypatch.setenv(name, value)
            yield Bucket(f"s3://{S3_BUCKET}/a/path")


async def test_what_is_put_is_got_listed_and_deleted(bucket):
    await bucket.put("place/chunks/ab/abcd", b"sealed")
    await bucket.put("place/objects", b"list")
    await bucket.put("place/chunks/ab/abcd", b"sealed again")
    assert (await bucket.get("place/chunks/ab/abcd", 100)).data == b"sealed again"
    assert await bucket.sizes("place/chunks") == {"abcd": 12}
    assert await bucket.sizes("elsewhere") == {}
    await bucket.delete(["place/chunks/ab/abcd", "place/chunks/ab/never"])
    with pytest.raises(NotThereError):
        await bucket.get("place/chunks/ab/abcd", 100)


async def test_an_object_that_has_not_changed_is_not_sent_again(bucket):
    await bucket.put("place/objects", b"list")
    first = await bucket.get("place/objects", 100)
    assert await bucket.get("place/objects", 100, first.tag) is None
    await bucket.put("place/objects", b"another list")
    assert (await bucket.get("place/objects", 100, first.tag)).data == b"another list"


async def test_no_more_is_read_than_there_may_be(bucket):
    await bucket.put("large", bytes(1_000_001))
    with pytest.raises(TooLongError, match="large: longer than 1000000 bytes"):
        await bucket.get("large", 1_000_000)


async def test_a_web_server_is_read(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "objects").write_bytes(b"list")
    with web_server(tmp_path) as url:
        web = Bucket(url)
        assert not web.is_writable
        assert (await web.get("place/objects", 100)).data == b"list"
        with pytest.raises(NotThereError):
            await web.get("place/chunks/ab/abcd", 100)


async def test_a_folder_that_is_missing_is_not_made(tmp_path):
    """Where a mount is missing, it would fill the disk below."""
    bucket = Bucket(f"file://{tmp_path}/mount")
    for doing in (bucket.put("place/objects", b""), bucket.get("place/objects", 1), bucket.sizes("place/chunks")):
        with pytest.raises(BucketError, match="no such folder; make it, or mount it"):
            await doing
    (tmp_path / "mount").mkdir()
    await bucket.put("place/objects", b"")


@pytest.fixture
def unfriendly():
    """A server that answers everything with 403, quoting what it was sent."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    asked = connection.recv(65536)
                    head = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(asked)
                    connection.sendall(head + asked)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


async def test_credentials_are_in_no_error(unfriendly, monkeypatch):
    for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": unfriendly}.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(f"s3://{S3_BUCKET}/a/path")
    for doing in (bucket.put("place/objects", b""), bucket.get("place/objects", 1), bucket.sizes("place/chunks")):
        with pytest.raises(BucketError) as caught:
            await doing
        shown = f"{caught.value!s} {caught.value!r} {caught.value.__cause__!r}"
        assert "403" in shown
        assert "\n" not in shown
        assert all(value not in shown for value in S3_ENVIRONMENT.values() if value != "us-east-1")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/path", "is no mirror"),
        ("/srv/mirror", "is no mirror"),
        ("file://relative/path", "no absolute folder"),
        ("s3://", "names no bucket"),
        ("https://user:hush@host/path", "holds credentials"),
        ("https://host/path?signature=hush", "holds credentials"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_the_configuration(url, says, tmp_path):
    with pytest.raises(ConfigError, match=says) as caught:
        Config.parse(f'[mirror]\nurl = "{url}"', Home.at(tmp_path))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://b", "gs://b/p", "az://b/p", "file:///srv/mirror", "https://host", "http://h:8/p"]
)
def test_urls_of_every_kind_are_taken(url):
    check_url(url)
