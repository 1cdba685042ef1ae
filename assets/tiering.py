"""One asset a pair of tiers: for each day by hlc, that nothing of it, or older, is in the hot one any more."""

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import MOVE_SENSOR, OWNERS, day_of_key, days_of, is_requested_by, move_mark
from assets.backends import kind_of, source_keys
from assets.columns import followed_columns
from assets.failure_policy import failure_policy
from lakesync.adapters.backend_config import DAY_MS, TieredBackend, resolve_backend, single_backends
from lakesync.adapters.uri import without_password
from lakesync.config import Config
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
        config: declares the tiers.
        days: UTC days of arrival.
    """
    return [tier_asset(config, name, tier_days(config, name, days)) for name in config.tiers]


def tier_days(config: Config, name: str, days: dg.TimeWindowPartitionsDefinition) -> dg.DailyPartitionsDefinition:
    """Return the UTC days by hlc of a pair of tiers.

    They begin so long before the first arrival that what is too old then moves on that very day.

    Args:
        config: declares the tiers.
        name: of the pair.
        days: UTC days of arrival.
    """
    first = days.start - timedelta(days=math.ceil(config.tiers[name].max_age_days) + 1)
    return dg.DailyPartitionsDefinition(start_date=f"{first:%Y-%m-%d}", timezone="UTC", end_offset=1)


def tier_asset(config: Config, name: str, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """Create the asset of a pair of tiers.

    A run moves everything up to the end of its day, also what came late for an earlier day. What is younger than the
    tiers' greatest age stays, whichever day is chosen.

    Args:
        config: names the places.
        name: of the pair.
        days: UTC days by hlc.
    """
    place = resolve_backend(config, name)
    assert isinstance(place, TieredBackend)
    declared = config.tiers[name]

    @dg.asset(
        key=tier_key(name),
        deps=source_keys(config, declared.hot),
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_tier_{name}",
        description=f"Deltas of the day and older at `{declared.cold}`, compared there and gone from `{declared.hot}`.",
        group_name=GROUP,
        kinds={"spark", *(kind_of(backend.uri) for backend in single_backends(place.cold))},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": followed_columns(),
            "dagster/uri": ", ".join(without_password(backend.uri) for backend in single_backends(place.cold)),
        },
    )
    def tiered(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.moves import move_to_tier

        last = max(days_of(context))
        end_ms = int(datetime(last.year, last.month, last.day, tzinfo=UTC).timestamp() * 1000) + DAY_MS - 1
        until_ms = min(end_ms, staging.now_ms() - place.max_age_ms)
        begun_ms = staging.now_ms()
        with failure_policy(context, pyspark):
            report = move_to_tier(pyspark.spark_session, name, place, until_ms)
            if is_requested_by(MOVE_SENSOR, context):
                staging.store.put_mark(move_mark(GROUP, name), str(begun_ms))
        return dg.MaterializeResult(metadata=_metadata(report, until_ms))

    return tiered


def oldest_day(now: datetime, max_age_days: float, days: dg.TimeWindowPartitionsDefinition) -> str | None:
    """Return the newest day that is old enough as a whole; None where the time axis begins later.

    Args:
        now: server wall time.
        max_age_days: the age from which deltas move.
        days: the time axis.
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
