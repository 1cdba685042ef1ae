"""Descriptions of the files of `landing`, for tasks. Importing it loads neither pyiceberg nor Spark."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

BUCKETS = 4
"""Number of buckets of `known`, by row id."""

OLD_MARK = ""
"""Row id under which earlier versions stored the mark of a table in `known`. No source has such a row."""


class LandedFile(NamedTuple):
    """A file of `landing`, described by its column bounds."""

    path: str
    rows: int
    bytes: int
    day: date
    landing: int
    """Number of the newest landing in it."""
    first: int
    """First page in it."""
    last: int
    """Last page in it."""
    hlc: int
    """Highest hlc in it."""
    claims: bool
    """Whether it has claims: pages that state to have all rows with a value in a column."""
    tables: tuple[str, str] = ("", chr(0x10FFFF))
    """First and last table in it, in alphabetical order."""

    def may_have(self, table: str) -> bool:
        """Return whether it may have rows of a table."""
        return self.tables[0] <= table <= self.tables[1]
