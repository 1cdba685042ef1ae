"""Names that assets, sensors, jobs and the run launcher share: keys of assets, Dagster's pools, run tags, and jobs.

A pool is a name that steps share: Dagster runs one step of a pool at a time, so that no two write the same table. A run
tag is a named text that a run carries. A slot is a kind of run: Dagster limits how many runs of one slot are in
progress at once. A gateway is one app's stream of changes. The asset `deltas` is the history: an Iceberg table with
every change that gateways accepted from clients. A state table has the current rows of one synced table. A transfer is
a run that copies changes between backends (databases and object stores): for a flow, a migration or a pair of tiers. A
poll is a run that reads an external system by a connector. The external assets (`assets.external`) are those that
Dagster shows and does not materialise.
"""

import dagster as dg

REQUESTED_BY = "lakesync/requested_by"
"""Run tag: the sensor that requested the run; absent if a person or a backfill did."""
REASON = "lakesync/reason"
"""Run tag: why the sensor or schedule requested the run."""
ONE_MAINTENANCE = "lakesync/upkeep"
"""Run tag of maintenance runs, of which only one runs at a time. Its value does not matter."""
SLOT = "lakesync/slot"
"""Run tag: the kind of run. Each kind has its own limit of concurrent runs, so that no kind delays another."""
FLUSH_SLOT, TRANSFER_SLOT, POLL_SLOT, UPKEEP_SLOT, OTHER_SLOT = "flush", "move", "poll", "upkeep", "other"
"""Values of the tag `SLOT`, in this order: flushes; transfers, and runs that write to destinations; polls; maintenance,
erasures and audits; all others."""
NOT_FLUSHED = "lakesync/set_aside"
"""Run tag: ids of the gateways that a run could not flush, separated by commas; empty for none."""
LEFT_OUT = "lakesync/left_out"
"""Run tag: the failures in spite of which a run continued, as a JSON list of short texts. The same fault always has the
same text."""
CONNECTOR = "lakesync/connector"
"""Run tag: `GATEWAY/NAME` of the connector whose external system a run polls."""

FLUSH_SENSOR = "flush_sensor"
POLL_SENSOR = "poll_sensor"
DESTINATION_SENSOR = "destination_sensor"
TRANSFER_SENSOR = "move_sensor"
"""Names of sensors: values of the tag `REQUESTED_BY`. A run that a sensor requested does all that is due; a run that a
person or a backfill started does the days of its partitions."""
FLUSH_JOB, POLL_JOB, ERASURE_JOB, DESTINATIONS_JOB = "flush", "poll", "erasure", "destinations"
"""Names of jobs whose runs are requested by sensors."""
AUDIT = "audit"
"""Name of the job that runs every check."""

DELTAS = dg.AssetKey("deltas")
"""The asset of the history."""
LOG = dg.AssetKey(["staging", "log"])
"""The external asset of the deltas that gateways accepted and the lake lacks."""
SNAPSHOTS = dg.AssetKey("checkpoint_snapshots")
"""The asset that a flush materialises last: the tagged Iceberg snapshots of the state tables."""
CHECKPOINT = dg.AssetKey("checkpoint")
"""The asset of the checkpoints (a gateway's rows in files, with which new clients start), partitioned by gateway."""

DELTAS_POOL = "lakesync_deltas"
"""Pool of the steps that write the history."""
CHECKPOINT_POOL = "lakesync_checkpoint"
"""Pool of the steps that make checkpoints."""


def state_key(table: str, namespace: str = "") -> dg.AssetKey:
    """Return the asset of a state table.

    Args:
        table: name of the synced table.
        namespace: the Iceberg namespace of its gateways; empty for the one that gateways share.
    """
    return dg.AssetKey([f"tables_{namespace}" if namespace else "tables", table])


def table_pool(table: str, namespace: str) -> str:
    """Return the pool of the steps that write a state table.

    Args:
        table: name of the synced table.
        namespace: the Iceberg namespace of its gateways; empty for the one that gateways share.
    """
    return f"lakesync_table_{namespace}__{table}" if namespace else f"lakesync_table_{table}"


def check_step(key: dg.AssetKey, checks: str = "checks") -> str:
    """Return the name of the step that checks an asset. The prefix distinguishes it from the asset's own step.

    Args:
        key: the asset.
        checks: the check's name, or `checks` if the step runs several.
    """
    return "__".join([checks, *key.path])


def client_key(table: str) -> dg.AssetKey:
    """Return the external asset of a table in the clients' databases."""
    return dg.AssetKey(["clients", table])


def polled_key(gateway: str, connector: str, table: str) -> dg.AssetKey:
    """Return the asset of the rows that a connector polls into a table.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
        table: the table's name.
    """
    return dg.AssetKey(["ingest", gateway, connector, table])


def target_key(destination: str, adapter: str) -> dg.AssetKey:
    """Return the asset of one adapter (a database or object store) to which a destination writes the history.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return dg.AssetKey(["destinations", destination, adapter])


def target_pool(destination: str, adapter: str) -> str:
    """Return the pool of the steps that write to one adapter of a destination.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return f"lakesync_destination_{destination}__{adapter}"


def is_requested_by(sensor: str, run: dg.DagsterRun) -> bool:
    """Return whether a sensor requested a run, rather than a person or a backfill.

    Args:
        sensor: the sensor's name.
        run: the run.
    """
    return run.tags.get(REQUESTED_BY) == sensor


def continues_on_failure(run: dg.DagsterRun) -> bool:
    """Return whether a run continues if a part of it fails, and fails only in its last step.

    Runs that the flush sensor requests do, if they include the last step, `checkpoint_snapshots`.
    """
    selected = run.asset_selection
    return is_requested_by(FLUSH_SENSOR, run) and (not selected or SNAPSHOTS in selected)
