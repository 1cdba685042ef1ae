"""Creates the assets, checks, jobs and sensors of destinations, flows, tiers and migrations.

These move the lake's or backends' deltas to other backends. `lakesync_dagster.definitions` calls it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import dagster as dg

from assets.asset_metadata import MOVE_SLOT, SLOT, target_key
from assets.destinations import destinations, lake_comparisons
from assets.external import backends
from assets.flows import flows
from assets.migration import migrations
from assets.tiering import tiers
from lakehouse.backends.declared import destination_targets
from lakesync.config import Config
from lakesync.staging.store.pipeline import OpenStaging
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.destinations import destination_sensor
from sensors.lags import PipelineLags
from sensors.moves import move_sensor


class Movement(NamedTuple):
    """Parts of the code location; empty if the configuration declares no destination, flow, tiers or migration."""

    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec] = ()
    checks: Sequence[dg.AssetChecksDefinition] = ()
    jobs: Sequence[UnresolvedAssetJobDefinition] = ()
    sensors: Sequence[dg.SensorDefinition] = ()


def movement(
    config: Config, days: dg.TimeWindowPartitionsDefinition, open_staging: OpenStaging, lags: PipelineLags
) -> Movement:
    """Create the parts of the code location for all destinations, flows, tiers and migrations.

    Args:
        config: the project's configuration.
        days: partitions by UTC day of arrival.
        open_staging: opens the staging store.
        lags: the lags of the pipeline's parts, which all sensors share.

    Raises:
        ConfigurationError: a destination or flow reaches one adapter in two ways.
    """
    targets = destinations(config, days)
    moved: dict[str, list[dg.AssetsDefinition]] = {
        "flows": flows(config, days),
        "tiers": tiers(config, days),
        "migrations": migrations(config),
    }
    jobs = (
        [_job("destinations", "Writes to destinations the deltas of the lake that they lack.", config)]
        if targets
        else []
    )
    keys = {each.mark_name: target_key(each.destination, each.target.name) for each in destination_targets(config)}
    sensors = [destination_sensor(job, keys, days, open_staging, lags) for job in jobs]
    moving = [_job_of(asset, group, config) for group, of_group in moved.items() for asset in of_group]
    moves = {job.name: job for job in moving}
    if moves:
        jobs += moves.values()
        sensors.append(move_sensor(config, moves, days, open_staging, lags))
    assets = [*targets, *(asset for of_group in moved.values() for asset in of_group)]
    return Movement([*backends(config), *assets], lake_comparisons(config), jobs, sensors)


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
