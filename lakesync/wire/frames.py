"""The framing of protobuf messages: a tag in each WebSocket frame, a length prefix in checkpoint streams and files.

`wire.protobuf` encodes the messages. A *checkpoint* is a snapshot of all rows, from which new clients start. The data
pipeline writes the frames of a checkpoint to files, with `s3()` if they are on S3. The gateway opens the files with
`FramePlace` and sends them as one stream, which the client reads with `read_checkpoint`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import unquote, urlsplit

from lakesync.model.errors import ConfigurationError, ValidationError, extra

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

MAX_FRAME_BYTES = 16 << 20
"""The largest message in a checkpoint stream."""

_LENGTH_BYTES = 4
"""Size of a length prefix."""
_CURSOR_ZERO = b"\x11" + bytes(8)
"""An encoded SyncResponse message whose field 2, `server_hlc`, is written as 0 instead of left out."""
_S3 = "s3://"


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
        raise ValidationError(f"frame tag {frame[0]:#04x} is none of 0x01 push, 0x02 pull, 0x03 broadcast") from None


def encode_answer(message: bytes) -> bytes:
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


class FramePlace:
    """The place of one file of frames."""

    def __init__(self, uri: str) -> None:
        """Parse the file's URI.

        Args:
            uri: `file:///…`, an absolute path, or `s3://BUCKET/KEY`.

        Raises:
            ConfigurationError: it has another form.
        """
        self.uri = uri
        self.on_s3 = uri.startswith(_S3)
        if self.on_s3:
            self._path = uri.removeprefix(_S3)
        elif uri.startswith("file:///"):
            self._path = unquote(urlsplit(uri).path)
        elif uri.startswith("/"):
            self._path = uri
        else:
            raise ConfigurationError(f"checkpoint frame {uri!r} is neither on a local disk nor on S3")

    def check(self) -> None:
        """Check that the file exists.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be reached.
            ConfigurationError: it is on S3, and pyarrow is not installed.
        """
        if not self.on_s3:
            Path(self._path).stat()
        elif not s3().get_file_info(self._path).is_file:
            raise FileNotFoundError(self.uri)

    def open(self) -> BinaryIO:
        """Open the file for reading; use it in a `with` statement.

        A local file can be read to its end even if it is deleted meanwhile; reading from S3 then fails. On S3, the
        result has only `read(size)` and the methods of a `with` statement.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: it cannot be reached.
            ConfigurationError: it is on S3, and pyarrow is not installed.
        """
        if self.on_s3:
            return _Stream(s3().open_input_stream(self._path))  # type: ignore[return-value]
        return Path(self._path).open("rb")


class _Stream:
    """Wraps Arrow's stream, so that `read` returns as many bytes as requested, unless the file ends before.

    The `read` of Arrow's stream may return fewer.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        remaining = size
        while remaining and (part := self._stream.read(remaining)):
            parts.append(part)
            remaining -= len(part)
        return b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@cache
def s3() -> S3FileSystem:
    """Return Arrow's S3 file system, which finds credentials as AWS tools do, in variables or the machine's role.

    The variables `AWS_REGION` (or `AWS_DEFAULT_REGION`) and `AWS_ENDPOINT_URL` select region and endpoint.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("s3", "frames on S3 need pyarrow"):
        from pyarrow.fs import S3FileSystem
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(region=region, endpoint_override=os.environ.get("AWS_ENDPOINT_URL"))
