"""Reads and writes the marks of polls in staging: when a connector was polled last, and which of its tables fail.

Polls write the marks. Sensors read them, to decide which connector is due.
"""

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

    The time of the last poll is written if a table succeeded and every table that did not fail before was polled.
    The next poll is then due after the connector's interval. So a failing table, which is retried separately, does not
    delay the others.

    Args:
        store: the staging store.
        connector: the connector that was polled.
        succeeded: each polled table → whether it was read and pushed completely.
        begun_ms: when the poll began, in milliseconds of server wall time.
        ended_ms: when it ended, in milliseconds of server wall time.
    """
    failing_before = failing_tables(store.marks(), connector)
    failing = {table: failed for table, failed in failing_before.items() if table not in succeeded}
    for table in (table for table, is_ok in succeeded.items() if not is_ok):
        before = failing_before.get(table, FailingTable(count=0, since_ms=begun_ms, begun_ms=0, ended_ms=0))
        failing[table] = FailingTable(before.count + 1, before.since_ms, begun_ms, ended_ms)
    if failing != failing_before:
        mark = failed_polls_mark(connector.gateway, connector.name)
        store.put_mark(mark, msgspec.json.encode(FailedPolls(failing)).decode())
    if any(succeeded.values()) and not set(connector.tables) - failing_before.keys() - succeeded.keys():
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
