"""The pipeline's marks: named texts in the staging store that say how far each part of the pipeline has come.

This module has the names of the marks that assets write. It also encodes the values of two kinds: those of polls (when
a connector, an external system, was read last, and which of its tables fail), and those of migrations (which days of
tables are copied from one database to another). A flow and a destination also have a mark at each adapter (database or
object store) that they write to, which is authoritative. Assets write marks after their work; sensors compare them to
find out what is due. A delta, below, is a change of a row; a *gateway* is one app's stream of deltas, and an *arrival*
its timestamp of a push.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from lakesync.analysis.marks import FailedPolls, FailingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakehouse.schema_snapshot import PolledConnector
    from lakesync.config.backends import DeclaredMigration
    from lakesync.staging.store.pipeline import PipelineMarks


def poll_mark(gateway: str, connector: str) -> str:
    """Return the name of the mark with the time at which the last poll of a connector began.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
    """
    return f"ingest/{gateway}/{connector}"


def failed_polls_mark(gateway: str, connector: str) -> str:
    """Return the name of the mark with the tables of a connector whose latest poll failed.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
    """
    return f"failed-polls/{gateway}/{connector}"


TransferKind = Literal["flow", "migration", "tier"]
"""The kinds of transfers; `tier` is a pair of tiers."""


def transfer_mark(kind: TransferKind, name: str) -> str:
    """Return the name of the mark of a flow, of tiers or of a migration, which transfer deltas between databases.

    A flow copies new deltas, and tiers move old ones to a cheaper store. The value of either mark is the time at which
    the last successful run began. A migration copies whole tables, and its value is the copied days (`CopiedDays`).

    Args:
        kind: the kind of transfer.
        name: name of the flow, tiers or migration in `lakesync.toml`.
    """
    return f"{kind}s/{name}"


def suspended_mark(flow_mark: str) -> str:
    """Return the name of the mark with a flow's suspended tables at one adapter, as a JSON list.

    A suspended table could not be written, and gets no rows until a retry succeeds.

    Args:
        flow_mark: the name of the mark that the adapter has for the flow, `flows/FLOW/ADAPTER` (`Flow.name`).
    """
    return f"suspended/{flow_mark}"


def destination_mark(destination: str, adapter: str) -> str:
    """Return the name of the mark of one adapter that a destination writes to.

    Its value says for each shard of a gateway (`GATEWAY/SHARD`) up to which arrival the adapter has all deltas. The
    adapter has the mark under the same name; that in staging is a copy for the sensors.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return f"destinations/{destination}/{adapter}"


def audit_mark(asset: str) -> str:
    """Return the name of the mark of an asset's last audit without a fault: its time, and the asset's state then.

    Args:
        asset: the asset's key as text, with slashes.
    """
    return f"audit/{asset}"


def maintenance_mark(part: str) -> str:
    """Return the name of the mark of the last maintenance of a table or of staging's log: its time, and the state then.

    Args:
        part: the partition of the asset `maintenance`.
    """
    return f"maintenance/{part}"


def record_poll(
    store: PipelineMarks, connector: PolledConnector, succeeded: Mapping[str, bool], begun_ms: int, ended_ms: int
) -> None:
    """Write a connector's marks after a poll of some of its tables.

    There are two: the failing tables, which sensors retry separately, and the time of the last poll, after which the
    connector's interval begins. The time is written if a table succeeded, and no table was left out except those that
    failed before. So a failing table does not delay the others.

    Args:
        store: the staging store.
        connector: the connector that was polled.
        succeeded: each polled table → whether it was read and pushed completely.
        begun_ms: when the poll began, in milliseconds of server wall time.
        ended_ms: when it ended, in milliseconds of server wall time.
    """
    failing_before = failing_tables(store.marks(), connector)
    failing = {table: failed for table, failed in failing_before.items() if table not in succeeded}
    for table, has_succeeded in succeeded.items():
        if not has_succeeded:
            before = failing_before.get(table, FailingTable(count=0, since_ms=begun_ms, begun_ms=0, ended_ms=0))
            failing[table] = FailingTable(before.count + 1, before.since_ms, begun_ms, ended_ms)
    if failing != failing_before:
        mark = failed_polls_mark(connector.gateway, connector.name)
        store.put_mark(mark, msgspec.json.encode(FailedPolls(failing)).decode())
    unpolled = set(connector.tables) - failing_before.keys() - succeeded.keys()
    if any(succeeded.values()) and not unpolled:
        store.put_mark(poll_mark(connector.gateway, connector.name), str(begun_ms))


def failing_tables(marks: Mapping[str, str], connector: PolledConnector) -> dict[str, FailingTable]:
    """Return the tables of a connector whose latest poll failed: they were not read, or not pushed, completely.

    Args:
        marks: name → value of all marks in staging.
        connector: the connector.
    """
    text = marks.get(failed_polls_mark(connector.gateway, connector.name))
    failed = msgspec.json.decode(text, type=FailedPolls).tables if text is not None else {}
    return {table: failed[table] for table in connector.tables if table in failed}


def last_poll_ms(marks: Mapping[str, str], connector: PolledConnector) -> int:
    """Return when a connector's last poll began, in milliseconds of server wall time; 0 before the first.

    Args:
        marks: name → value of all marks in staging.
        connector: the connector.
    """
    return int(marks.get(poll_mark(connector.gateway, connector.name), 0))


_DAY = timedelta(days=1)


class CopiedDays(msgspec.Struct, frozen=True):
    """A migration's mark in staging: which days were copied after they had ended.

    A delta belongs to the UTC day of its hlc, the client's timestamp.
    """

    tables: dict[str, list[tuple[date, date]]] = {}
    """Table → the copied days, as ranges from a first to a last day, ascending and with gaps between them."""

    @classmethod
    def of(cls, marks: Mapping[str, str], name: str) -> CopiedDays:
        """Return the mark of a migration; an empty one before its first run.

        Args:
            marks: name → value of all marks in staging.
            name: the migration's name.
        """
        text = marks.get(transfer_mark("migration", name))
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
    store.put_mark(transfer_mark("migration", name), msgspec.json.encode(mark).decode())


def first_missing_day(copied: CopiedDays, declared: DeclaredMigration) -> date | None:
    """Return the first day that a table of the migration lacks; None if the migration is complete.

    Args:
        copied: the migration's mark.
        declared: the migration's declaration, with its tables and first and last day.
    """
    day = declared.since
    # as long as all tables have the day, continue after the shortest of the copied ranges that contain it
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


def first_ms(day: date) -> int:
    """Return the first millisecond of a UTC day, since 1970."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
