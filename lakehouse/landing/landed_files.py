"""What tasks know of the files of `landing` and `known`. They import this instead of what plans the files."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

BUCKETS = 4
"""Of `known`, by row id."""

OLD_MARK = ""
"""The row id under which `known` had its page before there was a property for it: no row of a source has it."""


class LandedFile(NamedTuple):
    """A file of `landing`, and what is in it."""

    path: str
    rows: int
    bytes: int
    day: date
    landing: int
    """The newest landing."""
    first: int
    """The first page."""
    last: int
    """The last page."""
    hlc: int
    """The highest stamp."""
    claims: bool
    """Whether pages of it claim rows by a name."""
    tables: tuple[str, str] = ("", chr(0x10FFFF))
    """The least and the greatest name of a table in it."""

    def may_have(self, table: str) -> bool:
        """Whether rows of a table may be in it."""
        return self.tables[0] <= table <= self.tables[1]
