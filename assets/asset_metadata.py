"""Names that assets, sensors and jobs share: asset keys, pools, marks in staging, run tags, and days of partitions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from lakesync.model.hlc import start_of

OWNERS = ["team:lakesync"]
REQUESTED_BY = "lakesync/requested_by"
"""Run tag: which sensor asked for the run; absent on a run of a person or a backfill."""
REASON = "lakesync/reason"
"""Run tag: why the sensor asked."""
UPKEEP = "lakesync/upkeep"
"""Run tag: of a run that tidies; one of them runs at a time."""
SLOT = "lakesync/slot"
"""Run tag: the kind of run, each of which has slots of its own."""
FLUSH_SLOT, MOVE_SLOT, POLL_SLOT, UPKEEP_SLOT, OTHER_SLOT = "flush", "move", "poll", "upkeep", "other"
SET_ASIDE = "lakesync/set_aside"
"""Run tag: the gateways, with commas between, that a run went on without, and failed for at its end; may be empty."""
LEFT_OUT = "lakesync/left_out"
"""Run tag: what a run went on without, as a JSON list of short texts that are the same for the same fault."""
FLUSH_SENSOR = "flush_sensor"
POLL_SENSOR = "poll_sensor"
DESTINATION_SENSOR = "destination_sensor"
MOVE_SENSOR = "move_sensor"
CONNECTOR = "lakesync/connector"
"""Run tag: GATEWAY/NAME of the connector that a run polls."""

DELTAS = dg.AssetKey("deltas")
AUDIT = "audit"
"""The job that checks everything."""
LOG = dg.AssetKey(["staging", "log"])
CUT = dg.AssetKey("cut")
CHECKPOINT = dg.AssetKey("checkpoint")


def state_key(table: str, namespace: str = "") -> dg.AssetKey:
    """Return the asset of a state table.

    Args:
        table: the synced table.
        namespace: that of its gateways; empty for the shared one.
    """
    return dg.AssetKey([f"tables_{namespace}" if namespace else "tables", table])


def check_step(key: dg.AssetKey, checks: str = "checks") -> str:
    """Return the name of the step that checks an asset. It begins like no asset's step, whatever its table is called.

    Args:
        key: the asset.
        checks: the check, or `checks` for the step of several.
    """
    return "__".join([checks, *key.path])


def table_pool(table: str, namespace: str = "") -> str:
    """Return the pool of the steps that write a state table.

    Args:
        table: the synced table.
        namespace: that of its gateways; empty for the shared one.
    """
    return f"lakesync_table_{namespace}__{table}" if namespace else f"lakesync_table_{table}"


def client_key(table: str) -> dg.AssetKey:
    """Return the external asset of a table in the clients' databases."""
    return dg.AssetKey(["clients", table])


def poll_mark(gateway: str, connector: str) -> str:
    """Return the name of a connector's mark in staging: when its last poll that ended began.

    Args:
        gateway: of the connector.
        connector: its name.
    """
    return f"ingest/{gateway}/{connector}"


def failed_polls_mark(gateway: str, connector: str) -> str:
    """Return the name of a connector's mark in staging that counts its failed polls.

    Args:
        gateway: of the connector.
        connector: its name.
    """
    return f"failed-polls/{gateway}/{connector}"


def move_mark(group: str, name: str) -> str:
    """Return the name of a mark in staging: when the last run of a flow or of tiers that ended well began.

    Of a migration, the days that were copied.

    Args:
        group: `flows`, `tiers` or `migrations`.
        name: as lakesync.toml declares it.
    """
    return f"{group}/{name}"


def audit_mark(key: dg.AssetKey) -> str:
    """Return the name of an asset's mark in staging: its state when an audit last found nothing, and when that was."""
    return f"audit/{key.to_user_string()}"


def upkeep_mark(part: str) -> str:
    """Return the name of a part's mark in staging: its state when it was last tidied, and when that was."""
    return f"maintenance/{part}"


def polled_key(gateway: str, connector: str, table: str) -> dg.AssetKey:
    """Return the asset of the rows that a connector brings into a table.

    Args:
        gateway: of the connector.
        connector: its name.
        table: the table.
    """
    return dg.AssetKey(["ingest", gateway, connector, table])


def leaf_key(destination: str, leaf: str) -> dg.AssetKey:
    """Return the asset of a destination's leaf.

    Args:
        destination: as lakesync.toml declares it.
        leaf: the adapter that it leads to.
    """
    return dg.AssetKey(["destinations", destination, leaf])


def leaf_pool(destination: str, leaf: str) -> str:
    """Return the pool of the steps that write to a destination's leaf.

    Args:
        destination: as lakesync.toml declares it.
        leaf: the adapter that it leads to.
    """
    return f"lakesync_destination_{destination}__{leaf}"


def is_requested_by(sensor: str, context: dg.AssetExecutionContext) -> bool:
    """Return whether a sensor requested this run, rather than a person or a backfill.

    Args:
        sensor: its name.
        context: the step's.
    """
    return context.run.tags.get(REQUESTED_BY) == sensor


def continues_on_failure(run: dg.DagsterRun) -> bool:
    """Whether a run continues without a part that fails: it is the flush sensor's, and ends with the checkpoint.

    Its last step fails for what it left out.
    """
    selected = run.asset_selection
    return run.tags.get(REQUESTED_BY) == FLUSH_SENSOR and (not selected or CUT in selected)


def days_of(context: dg.AssetExecutionContext) -> list[date]:
    """Return the run's partitions as UTC days of arrival."""
    return [day_of_key(key) for key in context.partition_keys]


def days_asked(tags: Mapping[str, str]) -> list[date] | None:
    """Return the UTC days that a run's tags name; None where they name none."""
    only = tags.get("dagster/partition")
    first = tags.get("dagster/asset_partition_range_start", only)
    last = tags.get("dagster/asset_partition_range_end", only)
    if first is None or last is None:
        return None
    start, end = day_of_key(first), day_of_key(last)
    return [start + timedelta(days=number) for number in range((end - start).days + 1)]


def nearest_key(day: str, keys: Sequence[str]) -> str:
    """Return the partition of a day, or the one nearest to it.

    Args:
        day: as ISO 8601.
        keys: the partitions, ascending; one at least.
    """
    return min(max(day, keys[0]), keys[-1])


def ms_of_days(days: Sequence[date]) -> tuple[int, int]:
    """Return where a range of UTC days begins and ends, in milliseconds; the end is the first of the day after."""
    first, after = min(days), max(days) + timedelta(days=1)
    start, end = (int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000) for day in (first, after))
    return start, end


def arrivals_of(days: Sequence[date]) -> tuple[int, int]:
    """Return the first and the last arrival that a range of UTC days can have."""
    first_ms, end_ms = ms_of_days(days)
    return start_of(first_ms), start_of(end_ms) - 1


def day_of_key(key: str) -> date:
    """Return the day that a partition's key names."""
    return datetime.strptime(key, "%Y-%m-%d").replace(tzinfo=UTC).date()
