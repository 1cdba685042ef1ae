"""What is to be tidied or audited: what has another state than at the last time, by its mark in staging."""

from collections.abc import Mapping

import dagster as dg

from assets.asset_metadata import CHECKPOINT, audit_mark, leaf_key, upkeep_mark
from assets.destinations import all_leaves, mark_name
from assets.maintenance import HISTORY, LOG, RUNS, LakePart, lake_parts
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import checkpoint_state, destination_state, flushed_state, is_changed
from lakesync.config import Config
from lakesync.model.clock import WallClock
from lakesync.staging.store import PipelineStore

WEEK_MS = 7 * 86_400_000
"""Between two audits of what does not change."""
DAY_MS = 86_400_000
"""Between two upkeeps of a part that does not change: snapshots, files and Dagster's runs expire by age."""


def untidied(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the parts to be tidied, as partitions.

    Args:
        config: names the lake and the clock.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    states = _table_states(config, lake_parts(snapshot))
    states |= {LOG: flushed_state(store.backlog()), RUNS: ""}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    return [part for part, state in states.items() if is_changed(marks.get(upkeep_mark(part)), state, now_ms, DAY_MS)]


def unaudited(config: Config, snapshot: SchemaSnapshot, store: PipelineStore) -> list[str]:
    """Return the assets that were written since an audit last found nothing there, or a week ago.

    Args:
        config: names the lake, the destinations and the clock.
        snapshot: names the tables.
        store: the staging store.

    Raises:
        LakeUnavailableError: the catalogue cannot be read.
    """
    parts = {name: part for name, part in lake_parts(snapshot).items() if part.namespace is not None or name == HISTORY}
    states = {dg.AssetKey.from_user_string(name): state for name, state in _table_states(config, parts).items()}
    marks, now_ms = store.marks(), WallClock(config.clock_offset_file).now_ms()
    states[CHECKPOINT] = checkpoint_state(store.backlog())
    for name, _, leaf in all_leaves(config):
        states[leaf_key(name, leaf.name)] = destination_state(marks.get(mark_name(name, leaf)))
    return [
        key.to_user_string()
        for key, state in states.items()
        if is_changed(marks.get(audit_mark(key)), state, now_ms, WEEK_MS)
    ]


def _table_states(config: Config, parts: Mapping[str, LakePart]) -> dict[str, str]:
    """Part → its table's newest snapshot, as text."""
    from lakesync.analysis.lake_marks import snapshots  # pyiceberg, which loading the location does without

    own, shared = config.lake.system_namespace, config.lake.namespace
    tables = {
        name: (own if part.namespace is None else part.namespace or shared, part.table) for name, part in parts.items()
    }
    found = snapshots(config, tables.values())
    return {name: str(found[table]) for name, table in tables.items()}
