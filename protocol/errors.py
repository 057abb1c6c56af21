"""What can be wrong with bytes: one small hierarchy for the whole protocol floor."""

from __future__ import annotations


class ProtocolError(Exception):
    """Bytes or messages that break a rule of this protocol. The message names what and where."""


class FrameError(ProtocolError):
    """A frame is too long, cut short or not MessagePack within its limits."""


class MessageError(ProtocolError):
    """A well-framed message has the wrong type, field or value."""


class SignatureError(ProtocolError):
    """A signed object does not verify under the key that should have signed it."""


class SealError(ProtocolError):
    """A sealed chunk does not open under its key and associated data."""


class LayoutError(ProtocolError):
    """A layout does not tile its files, or names a file that no node may write."""


class CodecError(ProtocolError):
    """Chunk contents do not decode within the bounds they declare."""


class BaseMismatchError(CodecError):
    """The old values a record was made against are not the ones it is applied to."""
