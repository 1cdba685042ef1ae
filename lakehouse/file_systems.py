"""Opens the pyarrow file system of a URI: a local disk, or S3 as the `AWS_…` variables configure it.

Modules that read data files, and that read and write checkpoints, call it.
"""

from __future__ import annotations

import re

import pyarrow.fs as pafs

from lakesync.wire.frame_places import s3

_S3 = re.compile(r"^s3a?://")
_DATA_FILE = re.compile(r"^(file:/+|s3a?://)")


def on_s3(uri: str) -> bool:
    """Return whether a URI names an object on S3."""
    return bool(_S3.match(uri))


def file_system_of(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, and the path on it.

    Raises:
        pyarrow.ArrowInvalid: the URI's scheme is not supported.
    """
    if on_s3(uri):
        return s3(), _S3.sub("", uri)
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return found


def is_readable(data_file: str) -> bool:
    """Return whether `data_file_path` supports the URI of a data file."""
    return bool(_DATA_FILE.match(data_file))


def data_file_path(data_file: str) -> tuple[pafs.FileSystem, str]:
    """Return file system and path of a data file in Iceberg's metadata: `file:/…` without quoting, or `s3://…`."""
    if on_s3(data_file):
        return file_system_of(data_file)
    return pafs.LocalFileSystem(), _DATA_FILE.sub("/", data_file)
