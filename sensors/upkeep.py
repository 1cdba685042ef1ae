"""Decides which assets are due for maintenance or audit: those whose state has changed since their last one.

Marks in staging have the state and time of the last one. The schedules in `lakesync_dagster.jobs` call it.
"""

from collections.abc import Mapping

import dagster as dg

from assets.asset_metadata import CHECKPOINT, target_key
from assets.maintenance import HISTORY, LOG, RUNS, LakePart, lake_parts
from lakehouse.backends.declared import destination_targets
from lakehouse.marks import audit_mark, maintenance_mark
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import checkpoint_state, destination_state, flushed_state, is_changed
from lakesync.config import Config
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import PipelineStore

WEEK_MS = 7 * 86_400_000
"""Milliseconds between two audits of an asset that does not change."""
DAY_MS = 86_400_000
"""Milliseconds between two maintenances of a part that does not change: snapshots, files and runs expire by age."""


def parts_to_maintain(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the partitions of the asset `maintenance` that are due.

    Args:
        config: the project's configuration.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    states = _table_states(config, lake_parts(snapshot))
    states |= {LOG: flushed_state(store.backlog()), RUNS: ""}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    return [
        part for part, state in states.items() if is_changed(marks.get(maintenance_mark(part)), state, now_ms, DAY_MS)
    ]


def assets_to_audit(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the assets, as text, that have changed since an audit last found no fault, or whose audit is a week ago.

    Args:
        config: the project's configuration.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    parts = {name: part for name, part in lake_parts(snapshot).items() if part.namespace is not None or name == HISTORY}
    states = {dg.AssetKey.from_user_string(name): state for name, state in _table_states(config, parts).items()}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    states[CHECKPOINT] = checkpoint_state(store.backlog())
    for each in destination_targets(config):
        states[target_key(each.destination, each.target.name)] = destination_state(marks.get(each.mark_name))
    return [
        key.to_user_string()
        for key, state in states.items()
        if is_changed(marks.get(audit_mark(key.to_user_string())), state, now_ms, WEEK_MS)
    ]


def _table_states(config: Config, parts: Mapping[str, LakePart]) -> dict[str, str]:
    """Return part → the id of the newest snapshot of its table, as text."""
    from lakesync.analysis.lake_marks import snapshots  # pyiceberg, which loading the location does without

    own, shared = config.lake.system_namespace, config.lake.namespace
    tables = {
        name: (own if part.namespace is None else part.namespace or shared, part.table) for name, part in parts.items()
    }
    found = snapshots(config, tables.values())
    return {name: str(found[table]) for name, table in tables.items()}
