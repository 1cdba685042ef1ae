"""Which of Dagster's runs may go: those that ended long ago, unless the page of an asset still shows what they made."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import dagster as dg

AT_ONCE = 500
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


class OldRuns(NamedTuple):
    """What a deletion did."""

    deleted: int
    kept: int
    """Old ones to which the newest materialisation of an asset, or of one of its partitions, belongs."""


def delete_old_runs(instance: dg.DagsterInstance, before: datetime) -> OldRuns:
    """Delete the runs that were made before a moment and have ended, with their events.

    Args:
        instance: Dagster's.
        before: the moment.
    """
    needed = _needed(instance)
    old = [run_id for run_id in _old(instance, before) if run_id not in needed]
    for run_id in old:
        instance.delete_run(run_id)
    return OldRuns(len(old), sum(1 for _ in _old(instance, before)))


def _old(instance: dg.DagsterInstance, before: datetime) -> Iterator[str]:
    wanted = dg.RunsFilter(statuses=list(ENDED), created_before=before)
    cursor: str | None = None
    while found := instance.get_run_records(wanted, limit=AT_ONCE, cursor=cursor):
        for record in found:
            yield record.dagster_run.run_id
        cursor = found[-1].dagster_run.run_id


def _needed(instance: dg.DagsterInstance) -> set[str]:
    """Runs of the newest materialisations: without their events a partition would seem never to have been made."""
    needed: set[str] = set()
    storage = instance.event_log_storage
    for key in instance.get_asset_keys():
        newest = instance.get_latest_materialization_event(key)
        if newest is not None:
            needed.add(newest.run_id)
        by_partition = storage.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION)
        ids = sorted(by_partition.values())
        for start in range(0, len(ids), AT_ONCE):
            wanted = dg.EventRecordsFilter(
                dg.DagsterEventType.ASSET_MATERIALIZATION, asset_key=key, storage_ids=ids[start : start + AT_ONCE]
            )
            needed |= {record.event_log_entry.run_id for record in storage.get_event_records(wanted)}
    return needed
