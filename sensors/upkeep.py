"""Which parts are to be tidied: those whose state is another than at their last upkeep, by their marks in staging."""

import time

import dagster as dg

from assets.labels import upkeep_mark
from assets.maintenance import LOG, MAINTENANCE, RUNS, lake_parts
from lakesync.analysis.marks import is_changed, log_state
from lakesync.clock import WallClock
from lakesync.config import Config
from lakesync.staging.store import PipelineStore
from resources.snapshot import SchemaSnapshot

DAY_SECONDS = 86_400
"""Between two upkeeps of a part that does not change: snapshots and files expire by age."""


def untidied(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the parts to be tidied, as partitions, but for Dagster's runs.

    Args:
        config: names the lake and the clock.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    from lakesync.analysis.lake_marks import snapshots  # pyiceberg, which loading the location does without

    own, shared = config.lake.system_namespace, config.lake.namespace
    tables = {
        name: (own if part.namespace is None else part.namespace or shared, part.table)
        for name, part in lake_parts(snapshot).items()
    }
    found = snapshots(config, tables.values())
    states = {name: str(found[table]) for name, table in tables.items()}
    states[LOG] = log_state(store.backlog())
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    return [
        part
        for part, state in states.items()
        if is_changed(marks.get(upkeep_mark(part)), state, now_ms, DAY_SECONDS * 1000)
    ]


def has_old_runs(instance: dg.DagsterInstance) -> bool:
    """Whether it is a day since Dagster's runs were looked through. Dagster itself keeps that mark, beside the runs."""
    wanted = dg.AssetRecordsFilter(MAINTENANCE, asset_partitions=[RUNS])
    records = instance.fetch_materializations(wanted, limit=1).records
    return not records or records[0].timestamp < time.time() - DAY_SECONDS
