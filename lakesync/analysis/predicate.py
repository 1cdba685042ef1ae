"""A condition on a column that a scan of the lake can take."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

Literal = str | float | int | bool | date


class Predicate(NamedTuple):
    """`column op value`, which every row that the statement uses of a table fulfils."""

    column: str
    op: str
    """`=`, `!=`, `>`, `>=`, `<`, `<=` or `in`."""
    value: Literal | tuple[Literal, ...]
