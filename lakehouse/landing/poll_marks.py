"""Staging's marks of polls: when the last one began, and which tables fail. Polls write them, sensors read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.mark_names import failed_polls_mark, poll_mark
from lakesync.analysis.marks import FailedPolls, FailingTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakehouse.schema_snapshot import PolledConnector
    from lakesync.staging.store.pipeline import PipelineMarks


def record_poll(
    store: PipelineMarks, connector: PolledConnector, succeeded: Mapping[str, bool], begun_ms: int, ended_ms: int
) -> None:
    """Write a connector's marks after a poll of some of its tables.

    The mark of its last poll moves if a table succeeded and no table was left out but failing ones, so that the next
    poll of these tables is due at the connector's interval. A table that fails delays no other.

    Args:
        store: the staging store.
        connector: the connector.
        succeeded: each polled table → whether it was read and pushed completely.
        begun_ms: when the poll began, in milliseconds of server wall time.
        ended_ms: when it ended.
    """
    known = failing_tables(store.marks(), connector)
    failing = {table: failed for table, failed in known.items() if table not in succeeded}
    for table in (table for table, is_ok in succeeded.items() if not is_ok):
        before = known.get(table, FailingTable(0, begun_ms, 0, 0))
        failing[table] = FailingTable(before.count + 1, before.since_ms, begun_ms, ended_ms)
    if failing != known:
        mark = failed_polls_mark(connector.gateway, connector.name)
        store.put_mark(mark, msgspec.json.encode(FailedPolls(failing)).decode())
    if any(succeeded.values()) and not set(connector.tables) - known.keys() - succeeded.keys():
        store.put_mark(poll_mark(connector.gateway, connector.name), str(begun_ms))


def failing_tables(marks: Mapping[str, str], connector: PolledConnector) -> dict[str, FailingTable]:
    """Return the tables of a connector that its latest polls did not read or did not push completely.

    Args:
        marks: staging's marks.
        connector: the connector.
    """
    text = marks.get(failed_polls_mark(connector.gateway, connector.name))
    failed = msgspec.json.decode(text, type=FailedPolls).tables if text is not None else {}
    return {table: failed[table] for table in connector.tables if table in failed}


def last_poll_ms(marks: Mapping[str, str], connector: PolledConnector) -> int:
    """Return when a connector's last poll began, in milliseconds of server wall time; 0 before the first.

    Args:
        marks: staging's marks.
        connector: the connector.
    """
    return int(marks.get(poll_mark(connector.gateway, connector.name), 0))
