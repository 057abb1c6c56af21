"""The least that an HTTP server of files can be: a header, then sendfile. What a real one is measured against."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def serve(directory: Path, listener: socket.socket) -> None:
    """Answer GET for the files below `directory`, one connection at a time, each closed after its answer."""
    while True:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            name = request.split(b" ", 2)[1].decode().lstrip("/")
            with (directory / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size)
                sent = 0
                while sent < size:
                    sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)


def main() -> None:
    directory, path = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        serve(Path(directory), listener)


if __name__ == "__main__":
    main()
