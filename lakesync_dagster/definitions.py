"""The Dagster code location: assets, checks, jobs, schedules, sensors and resources.

Dagster imports this module and reads `defs`; tests call `make_definitions`. Loading reads the project's configuration,
and the schema snapshot: a file, written by the schema sensor, with the registered tables and connectors (external
systems to poll). It opens no connection, so the location can also be loaded while staging (the gateways' database) or
Spark cannot be reached. A gateway is one app's stream of changes (deltas). Most assets have a partition for each UTC
day of arrival: the day on which gateways received the changes of clients. A *lag* is a part of the pipeline that is
behind; all sensors share one reader of them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg

from assets.checkpoints import checkpoints
from assets.checks import checks
from assets.destinations import destinations, lake_comparisons
from assets.erasure import erasure
from assets.external import backends, sources
from assets.ingest import connectors
from assets.lake_tables import history, state_tables
from assets.maintenance import maintenance
from assets.names import DESTINATIONS_JOB, TRANSFER_SLOT, target_key
from assets.transfers import flows, migrations, tiers
from lakehouse.backends.declared import destination_targets, follower_positions
from lakehouse.gateway_connections import pipeline_store
from lakehouse.run_state import RunState
from lakehouse.schema_snapshot import SchemaSnapshot, read_snapshot, snapshot_file
from lakesync.config import Config, load
from lakesync.staging.store.pipeline import OpenStaging
from lakesync_dagster.jobs import audit_job, job_tags, maintenance_job, pipeline_jobs
from resources.spark import SparkConnectResource
from resources.stores import IntakeResource, LakeResource, StagingResource
from sensors.alerts import Alerts, check_failure_sensor, run_failure_sensor
from sensors.external_systems import destination_sensor, poll_sensor, transfer_sensor
from sensors.freshness import FRESH, fresh_assets, freshness_checks, freshness_sensor
from sensors.lags import PipelineLags
from sensors.schema import schema_sensor
from sensors.staging import WATCH_SECONDS, erasure_sensor, flush_sensor

OWNERS = ["team:lakesync"]
"""Owners of every asset, for Dagster's pages."""


def make_definitions(config: Config, snapshot: SchemaSnapshot) -> dg.Definitions:
    """Create the definitions of the code location.

    Args:
        config: the project's configuration.
        snapshot: the registered tables and connectors.
    """
    days = day_partitions(first_day(config, snapshot))
    reported_by_sensor = [dg.AssetCheckKey(key, FRESH) for key in fresh_assets(snapshot, config)]
    alerts = Alerts(config.dagster.alert_webhook, config.dagster.alert_secret, config.dagster.url)

    open_staging = partial(pipeline_store, config)
    lags = PipelineLags(config, snapshot, partial(follower_positions, config))
    polls = [poll_sensor(config, snapshot, days, open_staging, lags)] if snapshot.connectors else []

    pipeline = dg.Definitions(
        assets=[
            *sources(snapshot, config),
            *connectors(snapshot, days, config),
            history(days, config),
            *state_tables(snapshot, days, config),
            *checkpoints(snapshot, config),
            maintenance(snapshot, config.maintenance),
            erasure(snapshot, config),
        ],
        asset_checks=[*checks(snapshot), *freshness_checks(snapshot, config)],
        sensors=[
            flush_sensor(config, days, open_staging, lags, WATCH_SECONDS),
            schema_sensor(config, snapshot, open_staging),
            erasure_sensor(open_staging, lags),
            freshness_sensor(config, snapshot, open_staging, lags),
            run_failure_sensor(alerts),
            check_failure_sensor(alerts),
            *polls,
        ],
        resources=run_resources(config),
        executor=dg.in_process_executor,
    )
    merged = dg.Definitions.merge(
        pipeline,
        pipeline_jobs(config, snapshot, reported_by_sensor),
        audit_job(config, snapshot, open_staging),
        maintenance_job(config, snapshot, open_staging),
        _backend_definitions(config, days, open_staging, lags),
    )
    return merged.map_asset_specs(func=lambda spec: spec.replace_attributes(owners=OWNERS))


def _backend_definitions(
    config: Config, days: dg.TimeWindowPartitionsDefinition, open_staging: OpenStaging, lags: PipelineLags
) -> dg.Definitions:
    """Create the assets, jobs and sensors of destinations, flows, tiers and migrations; empty if none is declared.

    They copy or move deltas between the lake and the databases and object stores that `lakesync.toml` declares as
    backends; `docs/adapters.md` describes the four kinds.

    Raises:
        ConfigurationError: a destination or flow reaches one adapter in two ways.
    """
    targets = destinations(config, days)
    transfers = {"flows": flows(config, days), "tiers": tiers(config, days), "migrations": migrations(config)}
    tags = job_tags(config, TRANSFER_SLOT)
    jobs = []
    sensors = []
    if targets:
        to_destinations = dg.define_asset_job(
            DESTINATIONS_JOB,
            selection=dg.AssetSelection.groups("destinations") - dg.AssetSelection.all_asset_checks(),
            description="Writes to destinations the deltas of the lake that they lack.",
            tags=tags,
        )
        jobs.append(to_destinations)
        keys = {each.mark_name: target_key(each.destination, each.target.name) for each in destination_targets(config)}
        sensors.append(destination_sensor(keys, days, open_staging, lags))
    transfer_jobs = [
        dg.define_asset_job(f"{kind}_{asset.key.path[-1]}", selection=dg.AssetSelection.assets(asset.key), tags=tags)
        for kind, assets in transfers.items()
        for asset in assets
    ]
    if transfer_jobs:
        jobs += transfer_jobs
        sensors.append(transfer_sensor(config, dg.Definitions(jobs=transfer_jobs), days, open_staging, lags))
    return dg.Definitions(
        assets=[*backends(config), *targets, *(asset for assets in transfers.values() for asset in assets)],
        asset_checks=lake_comparisons(config),
        jobs=jobs,
        sensors=sensors,
    )


def first_day(config: Config, snapshot: SchemaSnapshot) -> str:
    """Return the partitions' first day, `YYYY-MM-DD`: the configured one, else that of the first push; at most today.

    Args:
        config: the project's configuration, which may set the day.
        snapshot: the schema snapshot, which has the day of the first push.
    """
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return min(config.dagster.partitions_start or snapshot.first_day or today, today)


def day_partitions(start: str) -> dg.DailyPartitionsDefinition:
    """Return the partitions by UTC day of arrival, from `start` (`YYYY-MM-DD`) until today."""
    return dg.DailyPartitionsDefinition(start_date=start, timezone="UTC", end_offset=1)


def run_resources(config: Config) -> Mapping[str, Any]:
    """Create the resources: name → resource.

    `run_state` has what the steps of one run share: each gateway's positions (up to which push deltas are flushed, and
    at which the checkpoint is made), and the failures in spite of which the run continued. Dagster creates one for each
    run.

    Args:
        config: the project's configuration.
    """

    def run_state(context: dg.InitResourceContext) -> RunState:
        resources = context.resources
        pyspark, staging, names = resources.pyspark, resources.staging, resources.lake.names
        return RunState(config, names, lambda: pyspark.spark_session, lambda: staging.store, staging.now_ms)

    return {
        "pyspark": SparkConnectResource.configured_by(config),
        "lake": LakeResource.configured_by(config),
        "staging": StagingResource.configured_by(config),
        "intake": IntakeResource(settings=config),
        "run_state": dg.ResourceDefinition(
            run_state,
            required_resource_keys={"pyspark", "lake", "staging"},
            description="The positions of gateways that all steps of a run agree on.",
        ),
    }


_config = load()
defs = make_definitions(_config, read_snapshot(snapshot_file(_config)))
