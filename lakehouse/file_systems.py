"""File systems by URI, as pyarrow opens them: this machine's disks, or S3 by what the variables of AWS say."""

from __future__ import annotations

import re

import pyarrow.fs as pafs

from lakesync.wire.frame_places import s3

_S3 = re.compile(r"^s3a?://")
_DATA_FILE = re.compile(r"^(file:/+|s3a?://)")


def on_s3(uri: str) -> bool:
    """Whether it is an object rather than a file."""
    return bool(_S3.match(uri))


def place(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, and the path on it.

    Raises:
        pyarrow.ArrowInvalid: nothing reads such a URI.
    """
    if on_s3(uri):
        return s3(), _S3.sub("", uri)
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return found


def is_readable(data_file: str) -> bool:
    """Whether `place_of` knows where a data file is."""
    return bool(_DATA_FILE.match(data_file))


def place_of(data_file: str) -> tuple[pafs.FileSystem, str]:
    """The same for a data file as Iceberg's metadata name it: `file:/…`, where nothing is quoted, or `s3://…`."""
    if on_s3(data_file):
        return place(data_file)
    return pafs.LocalFileSystem(), _DATA_FILE.sub("/", data_file)
