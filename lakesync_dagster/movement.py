"""What moves between backends by declaration: destinations, flows, tiers and migrations, with what asks for them."""

from collections.abc import Sequence
from typing import NamedTuple

import dagster as dg

from assets.backends import backends
from assets.destinations import all_leaves, destinations, equal_lake, mark_name
from assets.flows import flows
from assets.labels import MOVE_SLOT, SLOT, leaf_key
from assets.migration import ended_days, migrations
from assets.tiering import tiers
from lakesync.config import Config
from lakesync.config.backends import DeclaredMigration
from lakesync.staging.store import OpenStaging
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.destinations import destination_sensor
from sensors.lags import PipelineLags, is_under_way
from sensors.moves import MOVE, move_sensor


class Movement(NamedTuple):
    """Parts of the code location; empty where nothing is declared."""

    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec] = ()
    checks: Sequence[dg.AssetChecksDefinition] = ()
    jobs: Sequence[UnresolvedAssetJobDefinition] = ()
    schedules: Sequence[dg.ScheduleDefinition] = ()
    sensors: Sequence[dg.SensorDefinition] = ()


def movement(
    config: Config, days: dg.TimeWindowPartitionsDefinition, open_staging: OpenStaging, lags: PipelineLags
) -> Movement:
    """Everything that the configuration declares.

    Args:
        config: the configuration.
        days: UTC days, of the partitions of destinations and tiers.
        open_staging: opens the staging store.
        lags: of destinations.

    Raises:
        ConfigurationError: a destination or flow reaches one adapter in two ways.
    """
    leaves, moved = destinations(config, days), {"flows": flows(config, days), "tiers": tiers(config, days)}
    jobs = [_job("destinations", "Brings destinations up to what the lake holds.", config)] if leaves else []
    keys = {mark_name(name, leaf): leaf_key(name, leaf.name) for name, _, leaf in all_leaves(config)}
    sensors = [destination_sensor(job, keys, days, open_staging, lags) for job in jobs]
    schedules = []
    moving = [_job_of(asset, group, config) for group, of_group in moved.items() for asset in of_group]
    moves = {job.name: job for job in moving}
    if moves:
        jobs += moves.values()
        sensors.append(move_sensor(config, moves, days, open_staging, lags))
    migrated = migrations(config)
    for asset in migrated:
        declared = config.migrations[asset.key.path[-1]]
        if declared.schedule is not None:
            job = _job_of(asset, "migrations", config)
            jobs.append(job)
            schedules.append(_migration_schedule(job, asset.key.path[-1], declared, declared.schedule))
    return Movement(
        [*backends(config), *leaves, *moved["flows"], *moved["tiers"], *migrated],
        equal_lake(config),
        jobs,
        schedules,
        sensors,
    )


def _migration_schedule(
    job: UnresolvedAssetJobDefinition, name: str, declared: DeclaredMigration, cron: str
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=job.name,
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"`[migrations.{name}]` in lakesync.toml says when; one run for all days that were not copied.",
    )
    def ask(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        tags = {MOVE: job.name}
        if is_under_way(context.instance, tags):
            return dg.SkipReason(f"{job.name} is under way")
        span = ended_days(context.instance, name, declared, context.scheduled_execution_time)
        if span is None:
            return dg.SkipReason("every day that has ended was copied")
        first, last = span
        return dg.RunRequest(
            tags={
                **tags,
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
        )

    return ask


def _job(group: str, description: str, config: Config) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        group,
        selection=dg.AssetSelection.groups(group) - dg.AssetSelection.all_asset_checks(),
        description=description,
        tags={"dagster/max_runtime": str(config.dagster.max_run_seconds), SLOT: MOVE_SLOT},
    )


def _job_of(asset: dg.AssetsDefinition, group: str, config: Config) -> UnresolvedAssetJobDefinition:
    return dg.define_asset_job(
        f"{group}_{asset.key.path[-1]}",
        selection=dg.AssetSelection.assets(asset.key),
        tags={"dagster/max_runtime": str(config.dagster.max_run_seconds), SLOT: MOVE_SLOT},
    )
