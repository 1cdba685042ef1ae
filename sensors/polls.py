"""Asks for a poll of each connector when its interval has passed."""

from datetime import UTC, datetime

import dagster as dg

from assets.labels import CONNECTOR, POLL_SENSOR, REQUESTED_BY, polled_key
from lakesync.clock import WallClock
from lakesync.config import Config
from resources.compat_dagster import UnresolvedAssetJobDefinition
from resources.snapshot import PolledConnector, SchemaSnapshot
from sensors.flush import nearest_day
from sensors.pauses import held


def poll_sensor(
    config: Config,
    job: UnresolvedAssetJobDefinition,
    snapshot: SchemaSnapshot,
    days: dg.TimeWindowPartitionsDefinition,
) -> dg.SensorDefinition:
    """One run a connector that is due, never two at once; one that fails is asked again after a growing pause."""

    @dg.sensor(
        name=POLL_SENSOR,
        job=job,
        minimum_interval_seconds=2,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a poll of every connector whose interval has passed.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        due = [each for each in snapshot.connectors if is_due(context.instance, each)]
        if not due:
            return dg.SkipReason(f"{len(snapshot.connectors)} connectors, none of them due")
        today = nearest_day(days, WallClock(config.clock_offset_file).now_ms())
        return dg.SensorResult(run_requests=[_request(each, today) for each in due])

    return watch


def is_due(instance: dg.DagsterInstance, connector: PolledConnector) -> bool:
    """Whether a connector is to be polled now."""
    tags = {REQUESTED_BY: POLL_SENSOR, CONNECTOR: connector_tag(connector)}
    newest = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    if not newest:
        return True
    begun = newest[0].create_timestamp.replace(tzinfo=UTC)
    if (datetime.now(UTC) - begun).total_seconds() * 1000 < connector.interval_ms:
        return False
    return held(instance, tags) is None


def connector_tag(connector: PolledConnector) -> str:
    """How a connector's runs are found."""
    return f"{connector.gateway}/{connector.name}"


def _request(connector: PolledConnector, day: str) -> dg.RunRequest:
    return dg.RunRequest(
        asset_selection=[polled_key(connector.gateway, connector.name, table) for table in connector.tables],
        partition_key=day,
        tags={REQUESTED_BY: POLL_SENSOR, CONNECTOR: connector_tag(connector)},
    )
