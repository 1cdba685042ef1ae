"""Records in staging which days of a migration are copied. The migration's asset writes it, its sensor reads it.

A migration copies tables from one backend to another, one day (by the deltas' hlc, in UTC) after the other.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from lakehouse.mark_names import move_mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.config.backends import DeclaredMigration
    from lakesync.staging.store.pipeline import PipelineMarks

MIGRATIONS = "migrations"
"""Prefix of the names of these marks, and of the keys of the assets."""
_DAY = timedelta(days=1)


class CopiedDays(msgspec.Struct, frozen=True):
    """A migration's mark in staging: which days were copied after they had ended."""

    tables: dict[str, list[tuple[date, date]]] = {}
    """Table → the copied days, as ranges from a first to a last day, ascending and with gaps between them."""

    @classmethod
    def of(cls, marks: Mapping[str, str], name: str) -> CopiedDays:
        """Return the mark of a migration; an empty one before its first run.

        Args:
            marks: name → value of all marks in staging.
            name: the migration's name.
        """
        text = marks.get(move_mark(MIGRATIONS, name))
        return msgspec.json.decode(text, type=cls) if text is not None else cls()

    def has(self, table: str, day: date) -> bool:
        """Return whether a day of a table was copied.

        Args:
            table: the table's name.
            day: a UTC day by hlc.
        """
        return any(first <= day <= last for first, last in self.tables.get(table, ()))

    def with_day(self, table: str, day: date) -> CopiedDays:
        """Return the mark after a day of a table was copied.

        Args:
            table: the table's name.
            day: a UTC day by hlc.
        """
        joined: list[tuple[date, date]] = []
        for first, last in sorted([*self.tables.get(table, ()), (day, day)]):
            if joined and first <= joined[-1][1] + _DAY:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return CopiedDays({**self.tables, table: joined})


def record_copied(store: PipelineMarks, name: str, copied: Iterable[tuple[str, date]], today: date) -> None:
    """Add copied days to a migration's mark. A day that had not ended when the run began is copied again later.

    Args:
        store: the staging store.
        name: the migration's name.
        copied: tables and UTC days that the run copied.
        today: the UTC day on which the run began.
    """
    mark = CopiedDays.of(store.marks(), name)
    for table, day in copied:
        if day < today:
            mark = mark.with_day(table, day)
    store.put_mark(move_mark(MIGRATIONS, name), msgspec.json.encode(mark).decode())


def first_missing_day(copied: CopiedDays, declared: DeclaredMigration) -> date | None:
    """Return the first day that a table of the migration lacks; None if the migration is complete.

    Args:
        copied: the migration's mark.
        declared: the migration's declaration, with its tables and first and last day.
    """
    day = declared.since
    while all(copied.has(table, day) for table in declared.tables):
        day = min(last for table in declared.tables for first, last in copied.tables[table] if first <= day <= last)
        day += _DAY
    return day if declared.until is None or day <= declared.until else None


def days_to_copy(copied: CopiedDays, declared: DeclaredMigration, now_ms: int) -> tuple[date, date] | None:
    """Return the first and the last ended day that a table of the migration lacks; None if no day is missing.

    Args:
        copied: the migration's mark.
        declared: the migration's declaration, with its tables and first and last day.
        now_ms: server wall time in milliseconds since 1970.
    """
    last = min(utc_day(now_ms) - _DAY, declared.until or date.max)
    first = first_missing_day(copied, declared)
    if first is None or first > last:
        return None
    while all(copied.has(table, last) for table in declared.tables):
        last -= _DAY
    return first, last


def utc_day(ms: int) -> date:
    """Return the UTC day of a moment in milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC).date()
