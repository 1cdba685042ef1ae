"""The code location. Loading it reads the settings and the schema snapshot, and opens nothing."""

from functools import partial

import dagster as dg

from assets.checkpoints import checkpoints
from assets.checks import checks
from assets.erasure import erasure
from assets.external import sources
from assets.flush import history
from assets.freshness import FRESH, fresh_assets, freshness_checks
from assets.ingest import connectors, downstream_log
from assets.maintenance import maintenance
from assets.tables import state_tables
from lakehouse.backends.declared import followers
from lakehouse.schema_snapshot import SchemaSnapshot, read_snapshot, snapshot_file
from lakehouse.staging_connection import pipeline_store
from lakesync.config import Config, load
from lakesync_dagster.jobs import (
    audit_job,
    audit_schedule,
    erasure_job,
    flush_job,
    maintenance_job,
    maintenance_schedule,
    poll_job,
    tables_job,
)
from lakesync_dagster.movement import movement
from lakesync_dagster.partitions import arrival_days, first_day
from lakesync_dagster.resources import run_resources
from sensors.alerts import Alerts
from sensors.erasure import erasure_sensor
from sensors.failure import check_failure_sensor, run_failure_sensor
from sensors.flush import WATCH_SECONDS, flush_sensor
from sensors.freshness import freshness_sensor
from sensors.lags import PipelineLags
from sensors.polls import poll_sensor
from sensors.schema import schema_sensor


def make_definitions(config: Config, snapshot: SchemaSnapshot) -> dg.Definitions:
    """Create everything that Dagster shows and runs.

    Args:
        config: the configuration.
        snapshot: the registered tables and connectors.
    """
    days = arrival_days(first_day(config, snapshot))
    reported_by_sensor = [dg.AssetCheckKey(key, FRESH) for key in fresh_assets(snapshot, config)]
    flush = flush_job(config.dagster.max_run_seconds, reported_by_sensor)
    tables = tables_job(config.dagster.max_run_seconds, reported_by_sensor)
    audit = audit_job(config.dagster.max_run_seconds)
    tidying = maintenance_job(config.dagster.max_run_seconds)
    erasing = erasure_job(config.dagster.max_run_seconds)
    polls = [poll_job(config.dagster.max_run_seconds)] if snapshot.connectors else []
    alerts = Alerts(config.dagster.alert_webhook, config.dagster.alert_secret, config.dagster.url)

    open_staging = partial(pipeline_store, config)
    lags = PipelineLags(config, snapshot, partial(followers, config))
    moves = movement(config, days, open_staging, lags)

    return dg.Definitions(
        assets=[
            *downstream_log(sources(snapshot, config), snapshot),
            *connectors(snapshot, days, config),
            history(days, config),
            *state_tables(snapshot, days, config),
            *checkpoints(snapshot, config),
            maintenance(snapshot, config.maintenance),
            erasure(snapshot, config),
            *moves.assets,
        ],
        asset_checks=[*checks(snapshot), *freshness_checks(snapshot, config), *moves.checks],
        jobs=[flush, tables, audit, tidying, erasing, *moves.jobs, *polls],
        schedules=[
            audit_schedule(config, audit, snapshot, open_staging),
            maintenance_schedule(config, tidying, snapshot, open_staging),
        ],
        sensors=[
            flush_sensor(config, flush, days, open_staging, lags, WATCH_SECONDS),
            schema_sensor(config, snapshot, open_staging),
            erasure_sensor(erasing, open_staging, lags),
            freshness_sensor(config, snapshot, open_staging, lags),
            run_failure_sensor(alerts),
            check_failure_sensor(alerts),
            *moves.sensors,
            *(poll_sensor(config, job, snapshot, days, open_staging, lags) for job in polls),
        ],
        resources=run_resources(config),
        executor=dg.in_process_executor,
    )


_config = load()
defs = make_definitions(_config, read_snapshot(snapshot_file(_config)))
