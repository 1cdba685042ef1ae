"""Files with the frames of a checkpoint (a snapshot of all rows, for new clients), on a local disk or on S3.

A *frame* is a part of the checkpoint: a length, and as many bytes of encoded rows. The data pipeline writes the files,
and the gateway's route for checkpoints opens them with `FrameFile`. `lakehouse` reads the lake's data files by
`s3_file_system`.
"""

from __future__ import annotations

import os
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

from lakesync.model.errors import ConfigurationError, extra

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_S3 = "s3://"


class FrameFile:
    """One file of frames, on a local disk or on S3."""

    def __init__(self, uri: str) -> None:
        """Parse the file's URI.

        Args:
            uri: `file:///…`, percent-encoded, an absolute path, or `s3://BUCKET/KEY`.

        Raises:
            ConfigurationError: it has another form.
        """
        self.uri = uri
        self.on_s3 = uri.startswith(_S3)
        if self.on_s3:
            self._path = uri.removeprefix(_S3)
        elif uri.startswith("file:///"):
            parts = urlsplit(uri)
            if parts.query or parts.fragment:
                raise ConfigurationError(f"checkpoint frame {uri!r} ends at its ? or #: write %3F or %23")
            self._path = unquote(parts.path)
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
        elif not s3_file_system().get_file_info(self._path).is_file:
            raise FileNotFoundError(self.uri)

    def open(self) -> BinaryIO:
        """Open the file for reading; use it in a `with` statement.

        A local file can be read to its end even if it is deleted meanwhile; reading from S3 then fails.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: it cannot be reached.
            ConfigurationError: it is on S3, and pyarrow is not installed.
        """
        if self.on_s3:
            stream = s3_file_system().open_input_stream(self._path)
            return BufferedReader(stream)  # whose `read` returns all requested bytes, unlike that of Arrow's stream
        return Path(self._path).open("rb")


@cache
def s3_file_system() -> S3FileSystem:
    """Return Arrow's S3 file system, which finds credentials as AWS tools do, in variables or the machine's role.

    The variables `AWS_REGION` (or `AWS_DEFAULT_REGION`) and `AWS_ENDPOINT_URL` select region and endpoint.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("s3", "frames on S3 need pyarrow"):
        from pyarrow.fs import S3FileSystem
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(region=region, endpoint_override=os.environ.get("AWS_ENDPOINT_URL"))
