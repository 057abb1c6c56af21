"""Frames of the control connection: a 4-byte big-endian length, then that many bytes of MessagePack.

Sans-IO: `FrameDecoder.feed` takes whatever the socket gave and returns whole frames. A frame's length is
checked before anything is kept of its body, so a peer cannot make a node buffer more than one frame.
"""

from __future__ import annotations

import struct
from typing import Final

from .errors import FrameError

MAX_FRAME_BYTES: Final = 64 * 1024
"""Longest frame body. Nothing on the control plane is larger; bulk travels on lanes."""

_LENGTH: Final = struct.Struct(">I")


def encode_frame(body: bytes) -> bytes:
    """Length prefix and body. Raises FrameError above MAX_FRAME_BYTES: our own mistake, never the peer's."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Splits a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take bytes as they came; return the bodies of the frames they complete, in order.

        Raises FrameError for a frame that is empty or over MAX_FRAME_BYTES. The connection is then useless.
        """
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise FrameError(f"frame announces {length} bytes; allowed are 1 to {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if end > len(buffer):
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return frames

    def at_boundary(self) -> bool:
        """Whether no frame is half received: an end of stream here is clean."""
        return not self._buffer
