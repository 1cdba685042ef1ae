"""Describes the Parquet files of the table `landing`, whose rows are what polls read. Drivers send this to Spark tasks.

Importing it loads neither pyiceberg nor Spark.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

BUCKETS = 4
"""Number of buckets by row id of the table `known`, the current rows of each polled table."""

OLD_MARK = ""
"""Row id of a row of `known` in which earlier versions stored how far a table was read. No source has such an id."""


class LandedFile(NamedTuple):
    """A file of `landing` with the bounds of its columns, as Iceberg's metadata has them.

    A page is numbered by the hlc of its first row.
    """

    path: str
    rows: int
    bytes: int
    day: date
    """UTC day of the landing."""
    landing: int
    """Highest number of a landing in the file."""
    first: int
    """The file's first page."""
    last: int
    """The file's last page."""
    hlc: int
    """Highest hlc in the file."""
    claims: bool
    """Whether the file has claims: statements that a page has all rows with some value in a column."""
    tables: tuple[str, str] = ("", chr(0x10FFFF))
    """The file's first and last table in alphabetical order; by default it may have any table."""

    def may_have(self, table: str) -> bool:
        """Return whether the file may have rows of a table."""
        return self.tables[0] <= table <= self.tables[1]
