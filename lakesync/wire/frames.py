"""The framing of protobuf messages: a tag in each WebSocket frame, a length prefix in checkpoint streams and files.

`wire.protobuf` encodes the messages. The gateway and clients exchange WebSocket frames; a *broadcast* is one with a
page of changes that the gateway sends without a request. A *checkpoint* is a snapshot of all rows, from which new
clients start. The data pipeline writes its frames to files (`encode_checkpoint_frame`), and the gateway sends them as
one stream, which the client reads with `read_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import BinaryIO

from lakesync.model.errors import ValidationError

MAX_FRAME_BYTES = 16 << 20
"""The largest message in a checkpoint stream."""

_LENGTH_BYTES = 4
"""Size of a length prefix."""
_CURSOR_ZERO = b"\x11" + bytes(8)
"""An encoded SyncResponse message whose field 2, `server_hlc`, is written as 0 instead of left out."""


class FrameTag(IntEnum):
    """The first byte of a WebSocket frame."""

    PUSH = 1
    """A client's push."""
    PULL = 2
    """A client's pull."""
    BROADCAST = 3
    """A page that the server sends without a request."""


def encode_frame(tag: FrameTag, message: bytes) -> bytes:
    """Return a tagged WebSocket frame.

    Args:
        tag: what the message is.
        message: the encoded protobuf message.
    """
    return bytes((tag,)) + message


def decode_frame(frame: bytes) -> tuple[FrameTag, bytes]:
    """Return the tag and the message of a WebSocket frame.

    Raises:
        ValidationError: the frame is empty, or its tag is unknown.
    """
    if not frame:
        raise ValidationError("the frame is empty: send a tag byte and a message")
    try:
        return FrameTag(frame[0]), frame[1:]
    except ValueError:
        raise ValidationError(f"frame tag {frame[0]:#04x} is not 0x01 push, 0x02 pull or 0x03 broadcast") from None


def encode_response_frame(message: bytes) -> bytes:
    """Return the WebSocket frame of the response to a push or pull: a SyncResponse message without a tag.

    A client of the reference (the TypeScript system) ignores a frame of fewer than two bytes and keeps waiting. A
    message with only default values has no bytes, so its cursor 0 is encoded explicitly, which decodes to the same.
    """
    return message or _CURSOR_ZERO


def encode_checkpoint_frame(message: bytes) -> bytes:
    """Return a frame of a checkpoint stream: four bytes of length, big-endian, then the message.

    Raises:
        ValueError: the message is larger than MAX_FRAME_BYTES.
    """
    if len(message) > MAX_FRAME_BYTES:
        raise ValueError(f"a checkpoint frame of {len(message)} bytes is above {MAX_FRAME_BYTES}")
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


def read_checkpoint(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the messages of a checkpoint stream. Only one message is in memory at a time.

    Args:
        stream: the stream, at the beginning of a frame. The caller closes it.

    Raises:
        ValidationError: the stream ends within a frame, or a frame is larger than MAX_FRAME_BYTES.
    """
    position = 0
    while prefix := stream.read(_LENGTH_BYTES):
        length = int.from_bytes(prefix, "big")
        if len(prefix) < _LENGTH_BYTES:
            raise ValidationError(f"the checkpoint ends within the length at byte {position}: fetch it again")
        if length > MAX_FRAME_BYTES:
            raise ValidationError(f"the checkpoint frame at byte {position} claims {length} bytes: fetch it again")
        message = stream.read(length)
        if len(message) < length:
            raise ValidationError(f"the checkpoint ends within the frame at byte {position}: fetch it again")
        yield message
        position += _LENGTH_BYTES + length
