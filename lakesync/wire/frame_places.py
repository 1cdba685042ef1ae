"""Files of checkpoint frames, on a local disk or on S3: the pipeline writes them, the gateway reads them."""

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
    """One file of frames."""

    def __init__(self, uri: str) -> None:
        """Parse the file's URI.

        Args:
            uri: `file:///…`, a path, or `s3://BUCKET/KEY`.

        Raises:
            ConfigurationError: it has another form, or pyarrow, which reads S3, is not installed.
        """
        scheme = urlsplit(uri).scheme
        if scheme not in ("", "file", "s3"):
            raise ConfigurationError(f"checkpoint frame {uri!r} is neither on a local disk nor on S3")
        self.uri = uri
        self.on_s3 = scheme == "s3"
        self._path = uri.removeprefix(_S3) if self.on_s3 else unquote(urlsplit(uri).path)

    def check(self) -> None:
        """Check that the file exists.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be reached.
        """
        if not self.on_s3:
            Path(self._path).stat()
        elif not s3().get_file_info(self._path).is_file:
            raise FileNotFoundError(self.uri)

    def open(self) -> BinaryIO:
        """Open the file for reading. A local file can be read to its end even if it is deleted meanwhile."""
        if self.on_s3:
            return _Stream(s3().open_input_stream(self._path))  # type: ignore[return-value]
        return Path(self._path).open("rb")


class _Stream:
    """Wraps Arrow's stream, whose `read` may return fewer bytes than requested, so that `read` returns all of them."""

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
    """Return Arrow's S3 file system, with the endpoint and credentials of the `AWS_…` variables.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("s3", "frames on S3 need pyarrow"):
        from pyarrow.fs import S3FileSystem
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(region=region, endpoint_override=os.environ.get("AWS_ENDPOINT_URL"))
