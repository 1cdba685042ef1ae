"""Creates an asset for each pair of tiers: old deltas are moved from a hot backend to a cold one.

It is partitioned by day (of the deltas' hlc); after a day's partition, all deltas of the day and older ones are in the
cold tier. `lakehouse.backends.moves` does the work. `lakesync_dagster.movement` calls this module.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import MOVE_SENSOR, OWNERS, day_of_key, days_of, is_requested_by
from assets.columns import followed_columns
from assets.external import kind_of, source_keys
from assets.failure_policy import failure_policy
from lakehouse.mark_names import move_mark
from lakesync.adapters.backend_config import DAY_MS, TieredBackend, resolve_backend, single_backends
from lakesync.config import Config
from lakesync.model.secrets import without_password
from resources.gateways import StagingResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.compositions.lifecycle import TierReport

GROUP = "tiers"


def tier_key(name: str) -> dg.AssetKey:
    """Return the asset of a pair of tiers."""
    return dg.AssetKey([GROUP, name])


def tiers(config: Config, days: dg.TimeWindowPartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each pair of tiers.

    Args:
        config: the project's configuration, which declares the tiers.
        days: partitions by UTC day of arrival.
    """
    return [tier_asset(config, name, tier_days(config, name, days)) for name in config.tiers]


def tier_days(config: Config, name: str, days: dg.TimeWindowPartitionsDefinition) -> dg.DailyPartitionsDefinition:
    """Return the partitions of a pair of tiers: UTC days by hlc.

    They begin before the first arrival, so that deltas which are old already when they arrive have a partition.

    Args:
        config: the project's configuration, which declares the tiers.
        name: name of the pair of tiers.
        days: partitions by UTC day of arrival.
    """
    first = days.start - timedelta(days=math.ceil(config.tiers[name].max_age_days) + 1)
    return dg.DailyPartitionsDefinition(start_date=f"{first:%Y-%m-%d}", timezone="UTC", end_offset=1)


def tier_asset(config: Config, name: str, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """Create the asset of a pair of tiers.

    A run moves all deltas up to the end of its day, including late ones of earlier days. Deltas younger than
    `max_age_days` are never moved.

    Args:
        config: the project's configuration, which declares the tiers.
        name: name of the pair of tiers.
        days: partitions by UTC day of the hlc.
    """
    tiers = resolve_backend(config, name)
    assert isinstance(tiers, TieredBackend)
    declared = config.tiers[name]

    @dg.asset(
        key=tier_key(name),
        deps=source_keys(config, declared.hot),
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_tier_{name}",
        description=f"Deltas of the day and older at `{declared.cold}`, compared there, deleted from `{declared.hot}`.",
        group_name=GROUP,
        kinds={"spark", *(kind_of(backend.uri) for backend in single_backends(tiers.cold))},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": followed_columns(),
            "dagster/uri": ", ".join(without_password(backend.uri) for backend in single_backends(tiers.cold)),
        },
    )
    def tiered(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.moves import move_to_tier

        last = max(days_of(context))
        end_ms = int(datetime(last.year, last.month, last.day, tzinfo=UTC).timestamp() * 1000) + DAY_MS - 1
        until_ms = min(end_ms, staging.now_ms() - tiers.max_age_ms)
        begun_ms = staging.now_ms()
        with failure_policy(context, pyspark):
            report = move_to_tier(pyspark.spark_session, name, tiers, until_ms)
            if is_requested_by(MOVE_SENSOR, context):
                staging.store.put_mark(move_mark(GROUP, name), str(begun_ms))
        return dg.MaterializeResult(metadata=_metadata(report, until_ms))

    return tiered


def newest_movable_day(now: datetime, max_age_days: float, days: dg.TimeWindowPartitionsDefinition) -> str | None:
    """Return the newest day, as a partition key, all of whose deltas are old enough to move.

    Args:
        now: server wall time.
        max_age_days: the age in days from which deltas move.
        days: partitions by UTC day of the hlc.

    Returns:
        The key; None if the partitions begin later.
    """
    day = f"{now - timedelta(days=max_age_days + 1):%Y-%m-%d}"
    first = days.get_first_partition_key()
    return day if first is not None and day_of_key(first) <= day_of_key(day) else None


def _metadata(report: "TierReport", until_ms: int) -> dict[str, dg.MetadataValue | str | int]:
    return {
        "deltas_moved": report.deltas,
        "id_sum": str(report.id_sum),
        "pages": report.pages,
        "moved_until": dg.MetadataValue.timestamp(until_ms / 1000),
    }
