"""Stores that a mirror can be in: a folder, that folder behind a web server, an S3 server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

S3_BUCKET = "weights"
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIA-of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests",
    "AWS_REGION": "us-east-1",
}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        pass


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """A plain web server for `folder`; its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def nginx(folder: Path, scratch: Path) -> Iterator[str]:
    """nginx for `folder`; its URL. Skips where Debian's package is not installed."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = _free_port()
    scratch.mkdir()
    (scratch / "nginx.conf").write_text(f"""
daemon off;
pid {scratch}/pid;
error_log {scratch}/error.log;
worker_processes 1;
{"user root;" if os.geteuid() == 0 else ""}
events {{}}
http {{
  access_log off;
  client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/fastcgi;
  uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
""")
    with _running([program, "-p", str(scratch), "-c", str(scratch / "nginx.conf")], port, scratch / "said"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def s3_server(scratch: Path) -> Iterator[dict[str, str]]:
    """An S3 server with an empty bucket; the environment that leads there.

    moto's, from the environment's own commands or from the one that PATCHSWARM_S3_SERVER names; else it skips.
    """
    program = os.environ.get("PATCHSWARM_S3_SERVER") or shutil.which("moto_server")
    if program is None:
        pytest.skip("no S3 server: pip install 'moto[server]' in any environment, PATCHSWARM_S3_SERVER=…/moto_server")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    scratch.mkdir()
    with _running([program, "-H", "127.0.0.1", "-p", str(port)], port, scratch / "said"):
        request = urllib.request.Request(f"{url}/{S3_BUCKET}", method="PUT")  # moto asks nobody who he is
        urllib.request.urlopen(request, timeout=30).close()
        yield {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}


@contextlib.contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server as long as the context lasts, from when it answers."""
    with log.open("w") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()
                break
            except OSError:
                time.sleep(0.05)  # no event tells when another program has begun to listen
            else:
                break
        yield
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
