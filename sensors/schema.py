"""Creates the sensor that reloads the code location when tables or connectors are registered.

A code location is the process in which Dagster loads assets, jobs and sensors. It creates its assets from the schema
snapshot, a file that lists the registered tables and connectors (external systems to poll); so new ones need a new file
and a reload. The code location (`lakesync_dagster.definitions`) calls this module.
"""

import dagster as dg
import msgspec

from lakehouse.schema_snapshot import SchemaSnapshot, first_arrival_day, registered, snapshot_file, write_snapshot
from lakesync.cli.dagster_client import DagsterClient, DagsterUnreachableError
from lakesync.config import Config
from lakesync.staging.store.pipeline import OpenStaging
from sensors.backoff import skip_during_outage

_RELOAD_SECONDS = 50
"""Timeout of the request for a reload."""


def schema_sensor(config: Config, loaded: SchemaSnapshot, open_staging: OpenStaging) -> dg.SensorDefinition:
    """Create the sensor that reloads the code location when tables or connectors are registered.

    It writes the changed snapshot file and then requests the reload from Dagster's webserver. The sensor of the
    reloaded location compares with the new snapshot, so a reload is repeated only if it failed. If the webserver
    rejects the reload, the tick fails, and the next one tries again.

    Args:
        config: the project's configuration, with the snapshot file and the webserver's URL.
        loaded: the snapshot from which this code location was created.
        open_staging: opens the staging store, which has the registrations.
    """

    @dg.sensor(
        name="schema_sensor",
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Writes newly registered tables to the schema snapshot and loads this code location again.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        with open_staging() as store:
            current = registered(store, config.namespaces.own)
            if config.dagster.partitions_start is None:  # then daily partitions begin on the day of the first push
                first_day = loaded.first_day or first_arrival_day(store)
                current = msgspec.structs.replace(current, first_day=first_day)
        if current == loaded:
            return dg.SkipReason(f"{len(current.tables)} tables, none of them new")
        write_snapshot(snapshot_file(config), current)
        changes = _describe_changes(loaded, current)
        url = config.dagster.url
        if url is None:
            return dg.SkipReason(f"changed: {changes}; reload the location, as dagster.url names no webserver")
        context.log.info("changed: %s", changes)
        try:
            DagsterClient(url, _RELOAD_SECONDS).reload_location()
        except DagsterUnreachableError as error:
            return dg.SkipReason(f"changed: {changes}; {error}; the next tick tries again")
        return dg.SkipReason(f"loaded again with {changes}")

    return watch


def _describe_changes(loaded: SchemaSnapshot, current: SchemaSnapshot) -> str:
    """Return the new or changed tables (with their namespace, unless it is the shared one) and connectors as text."""
    loaded_states = loaded.states
    changes = [
        f"{namespace}.{schema.table}" if namespace else schema.table
        for schema, namespace in current.states
        if (schema, namespace) not in loaded_states
    ]
    changes += [each.name for each in current.connectors if each not in loaded.connectors]
    if current.first_day != loaded.first_day:
        changes.append(f"partitions from {current.first_day} on")
    return ", ".join(changes)
