"""Where the frames of checkpoints are: folders of this machine, or S3. The pipeline writes there, the gateway reads."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from urllib.parse import unquote, urlsplit

from lakesync.model.errors import ConfigurationError
from lakesync.model.optional_imports import extra

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_S3 = "s3://"


class FramePlace:
    """One file of frames, by its URI."""

    def __init__(self, uri: str) -> None:
        """Args: uri: `file:///…`, a path, or `s3://BUCKET/KEY`.

        Raises:
            ConfigurationError: it is none of these, or what reads S3 is not installed.
        """
        scheme = urlsplit(uri).scheme
        if scheme not in ("", "file", "s3"):
            raise ConfigurationError(f"checkpoint frame {uri!r} is neither on a local disk nor on S3")
        self.uri = uri
        self.on_s3 = scheme == "s3"
        self._path = uri.removeprefix(_S3) if self.on_s3 else unquote(urlsplit(uri).path)

    def check(self) -> None:
        """Whether it is there.

        Raises:
            FileNotFoundError: it is gone.
            OSError: nobody can tell.
        """
        if not self.on_s3:
            Path(self._path).stat()
        elif not s3().get_file_info(self._path).is_file:
            raise FileNotFoundError(self.uri)

    def open(self) -> BinaryIO:
        """Its bytes, read as one goes; what is open on a local disk is read to its end though it be removed."""
        if self.on_s3:
            return _Stream(s3().open_input_stream(self._path))  # type: ignore[return-value]
        return Path(self._path).open("rb")


class _Stream:
    """Arrow's stream, whose `read` gives what there is at once; a reader of frames wants all that it asks for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        left = size
        while left and (part := self._stream.read(left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@cache
def s3() -> S3FileSystem:
    """S3 by what the environment says: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("s3", "frames on S3 need pyarrow"):
        from pyarrow.fs import S3FileSystem
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(region=region, endpoint_override=os.environ.get("AWS_ENDPOINT_URL"))
