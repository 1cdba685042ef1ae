"""Creates the assets of transfers, which copy deltas between backends: one for each flow, migration and pair of tiers.

A delta is a change of some columns of one row; a gateway is one app's stream of deltas. A backend, which
`lakesync.toml` declares, stores deltas; it consists of adapters, each for one database or object store.
`lakehouse.backends.flows` and `lakehouse.backends.transfers` do the work. The code location
(`lakesync_dagster.definitions`) calls `flows`, `migrations` and `tiers`; the sensor that requests the runs uses the
functions on partitions, and the asset `erasure` the keys and pools.

- A *flow* copies the deltas whose rows meet a filter. It is partitioned by the day of arrival, on which a gateway
  received them.
- A *migration* copies whole tables from one backend to another, and compares both. It is partitioned by table and day.
- A pair of *tiers* moves old deltas from a hot backend to a cold one. It is partitioned by day: after the run of a
  day's partition, all deltas of the day and of earlier days are in the cold tier.

For migrations and tiers the day of a delta is that of its hlc, the time at which a client made it.
"""

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import Metadata, report_by_day
from assets.external import kind_of, source_keys, target_metadata
from assets.failure_policy import failure_policy
from assets.names import TRANSFER_SENSOR, is_requested_by
from assets.partitions import arrivals_of, days_of, ms_of_days
from lakehouse.backends.declared import flow_tasks, lake_flow_task, migration_task
from lakehouse.marks import TransferKind, record_copied, suspended_mark, transfer_mark, utc_day
from lakesync.adapters.backend_config import TieredBackend, resolve_backend, single_backends, write_targets
from lakesync.config import Config
from lakesync.config.backends import LAKE, DeclaredFlow, DeclaredMigration
from lakesync.model.errors import Rejection, ValidationError
from lakesync.model.hlc import wall_of
from resources.spark import SparkConnectResource
from resources.stores import StagingResource

if TYPE_CHECKING:
    from lakehouse.backends.flows import Flow, LakeFlow
    from lakesync.adapters.composite import TierReport
    from lakesync.adapters.transfer.flows import FlowStep
    from lakesync.adapters.transfer.migration import MigrationReport

_MAX_SHOWN = 5
"""Rejected deltas that the error of a flow names, at most."""


def flows(config: Config, days: dg.PartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each flow. Each adapter that a flow writes to has its own mark: how far it has copied.

    A run that the sensor requests copies new deltas. Any other run copies new deltas up to the end of its days, and
    then copies the deltas that reached the source on these days again.

    Args:
        config: the project's configuration, which declares the flows.
        days: partitions by UTC day of arrival.

    Raises:
        ConfigurationError: a flow reaches one adapter in two ways.
    """
    return [_flow_asset(config, name, declared, days) for name, declared in config.flows.items()]


def transfer_key(kind: TransferKind, name: str) -> dg.AssetKey:
    """Return the key of the asset of a transfer.

    Args:
        kind: the kind of transfer.
        name: the transfer's name in `lakesync.toml`.
    """
    return dg.AssetKey([f"{kind}s", name])


def transfer_pool(kind: TransferKind, name: str) -> str:
    """Return the Dagster pool of the steps of a transfer; one step of a pool runs at a time. Erasures use it too.

    Args:
        kind: the kind of transfer.
        name: the transfer's name in `lakesync.toml`.
    """
    return f"lakesync_{kind}_{name}"


def migrations(config: Config) -> list[dg.AssetsDefinition]:
    """Create an asset for each migration. Each day of each table is a Spark task, or several if it is large."""
    return [_migration_asset(config, name, declared) for name, declared in config.migrations.items()]


def partition_key(table: str, day: date) -> dg.MultiPartitionKey:
    """Return the key of a migration's partition for a table and a UTC day.

    Args:
        table: the table's name.
        day: the UTC day.
    """
    return dg.MultiPartitionKey({"day": day.isoformat(), "table": table})


def tiers(config: Config, days: dg.TimeWindowPartitionsDefinition) -> list[dg.AssetsDefinition]:
    """Create an asset for each pair of tiers.

    A run moves all deltas up to the end of its day, including late ones of earlier days. Deltas younger than
    `max_age_days` are never moved.

    Args:
        config: the project's configuration, which declares the tiers.
        days: partitions by UTC day of arrival.
    """
    return [_tier_asset(config, name, tier_days(config, name, days)) for name in config.tiers]


def tier_days(config: Config, name: str, days: dg.TimeWindowPartitionsDefinition) -> dg.DailyPartitionsDefinition:
    """Return the partitions of a pair of tiers: UTC days by hlc, up to the current day.

    They begin before the first day of arrival, so that deltas which are old already when they arrive have a partition.

    Args:
        config: the project's configuration, which declares the tiers.
        name: name of the pair of tiers.
        days: partitions by UTC day of arrival.
    """
    first = days.start - timedelta(days=math.ceil(config.tiers[name].max_age_days) + 1)
    return dg.DailyPartitionsDefinition(start_date=f"{first:%Y-%m-%d}", timezone="UTC", end_offset=1)


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
    return day if first is not None and first <= day else None


def _flow_asset(
    config: Config, name: str, declared: DeclaredFlow, days: dg.PartitionsDefinition
) -> dg.AssetsDefinition:
    """Create the asset of a flow."""
    to_lake = declared.to == LAKE
    targets = [] if to_lake else write_targets(config, declared.to, declared.tables)

    @dg.asset(
        key=transfer_key("flow", name),
        deps=source_keys(config, declared.source),
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=transfer_pool("flow", name),
        description=_flow_description(name, declared),
        group_name="flows",
        kinds={"spark", *(kind_of(target.uri) for target in targets)} | ({"lakesync"} if to_lake else set()),
        metadata=target_metadata(target.uri for target in targets),
    )
    def flowed(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.flows import flow

        requested_by_sensor = is_requested_by(TRANSFER_SENSOR, context.run)
        # first and last arrival of the deltas to copy again; None to copy only new ones
        replayed = None if requested_by_sensor else arrivals_of(days_of(context))
        with failure_policy(context, pyspark, retried=False):  # the sensor requests a flow that is due again
            spark, begun_ms = pyspark.spark_session, staging.now_ms()
            of_adapters = [] if to_lake else flow_tasks(config, staging.store, name, declared)
            tasks: list[Flow | LakeFlow]
            if to_lake:  # a flow into the lake pushes to a gateway as a client does
                tasks = [lake_flow_task(config, staging.store, name, declared)._replace(replay_range=replayed)]
            else:
                tasks = [msgspec.structs.replace(each, replay_range=replayed) for each in of_adapters]
            by_target = flow(spark, tasks)
            counts = [
                (day, "deltas_replayed" if page.is_replay else "deltas_in", deltas)
                for pages in by_target
                for page in pages
                for day, deltas in page.days.items()
            ]
            report_by_day(context, ["deltas_in"] if replayed is None else ["deltas_in", "deltas_replayed"], counts)
            if requested_by_sensor:
                staging.store.put_mark(transfer_mark("flow", name), str(begun_ms))
            for task, pages in zip(of_adapters, by_target, strict=not to_lake):
                suspended = [table for page in pages for table in page.suspended]
                staging.store.put_mark(suspended_mark(task.name), msgspec.json.encode(suspended).decode())
            _check_rejected([each for pages in by_target for page in pages for each in page.rejected])
        return dg.MaterializeResult(metadata=_flow_metadata(by_target))

    return flowed


def _check_rejected(rejected: Sequence[Rejection]) -> None:
    """Raise ValidationError if a gateway rejected deltas of a flow into the lake. The others are copied by then."""
    if rejected:
        shown = "; ".join(f"delta {each.delta_id}: {each.message}" for each in rejected[:_MAX_SHOWN])
        raise ValidationError(
            f"the gateway rejected {len(rejected)} deltas, and the flow copied the others. Remove the cause, then "
            f"backfill their days. {shown}"
        )


def _flow_description(name: str, declared: DeclaredFlow) -> str:
    """Return the description of a flow's asset, with its tables and filter."""
    where = " and ".join(f"`{each.column}` {each.op} `{each.value}`" for each in declared.where)
    tables = ", ".join(f"`{table}`" for table in declared.tables) or "every table"
    return f"The flow `{name}`: {tables} of `{declared.source}` to `{declared.to}`" + (
        f", where {where}." if where else "."
    )


def _flow_metadata(by_target: "Sequence[Sequence[FlowStep]]") -> Metadata:
    """Return the run's metadata. `by_target` has the copied pages of each adapter, in order."""
    pages = [page for pages in by_target for page in pages]
    new = [page for page in pages if not page.is_replay]
    marks = [pages[-1].progress.position for pages in by_target if pages]
    positions = [position.value for position in marks if position is not None]
    metadata: Metadata = {
        "scanned": sum(page.scanned for page in pages),
        "deltas_in": sum(page.deltas for page in new),
        "dagster/row_count": max((page.progress.deltas for page in pages), default=0),
    }
    if len(new) < len(pages):
        metadata["deltas_replayed"] = sum(page.deltas for page in pages) - sum(page.deltas for page in new)
    if positions:  # the run's mark is the earliest of its adapters' marks
        metadata["mark"] = dg.MetadataValue.timestamp(wall_of(min(positions)) / 1000)
    return metadata


def _migration_asset(config: Config, name: str, declared: DeclaredMigration) -> dg.AssetsDefinition:
    """Create the asset of a migration."""
    target = single_backends(resolve_backend(config, declared.to))

    @dg.asset(
        key=transfer_key("migration", name),
        deps=source_keys(config, declared.source),
        partitions_def=_migration_partitions(declared),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=transfer_pool("migration", name),
        description=f"The deltas of a day and table of `{declared.source}` at `{declared.to}`, compared with it.",
        group_name="migrations",
        kinds={"spark", *(kind_of(backend.uri) for backend in target)},
        metadata=target_metadata(backend.uri for backend in target),
    )
    def migrated(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.transfers import migrate

        today = utc_day(staging.now_ms())
        keys = [key for key in context.partition_keys if isinstance(key, dg.MultiPartitionKey)]
        tables_and_days = [_table_and_day(key) for key in keys]
        with failure_policy(context, pyspark):
            tasks = [migration_task(config, name, declared, table, day) for table, day in tables_and_days]
            reports = migrate(pyspark.spark_session, tasks)
            record_copied(staging.store, name, tables_and_days, today)
        for key, report in zip(keys, reports, strict=True):
            context.add_asset_metadata(_migration_counts([report]), partition_key=key)
        return dg.MaterializeResult(metadata=_migration_metadata(keys, reports))

    return migrated


def _migration_partitions(declared: DeclaredMigration) -> dg.MultiPartitionsDefinition:
    """Return the partitions of a migration, by day and table."""
    end = declared.until + timedelta(days=1) if declared.until is not None else None
    days = dg.DailyPartitionsDefinition(
        start_date=f"{declared.since:%Y-%m-%d}",
        end_date=None if end is None else f"{end:%Y-%m-%d}",
        timezone="UTC",
        end_offset=1 if end is None else 0,  # 1 includes the current day
    )
    return dg.MultiPartitionsDefinition({"day": days, "table": dg.StaticPartitionsDefinition(list(declared.tables))})


def _table_and_day(key: dg.MultiPartitionKey) -> tuple[str, date]:
    """Return the table and the day of a migration's partition."""
    return key.keys_by_dimension["table"], date.fromisoformat(key.keys_by_dimension["day"])


def _migration_counts(reports: "Sequence[MigrationReport]") -> dict[str, int]:
    """Return the counts of one or more partitions of a migration, added up, as metadata."""
    return {
        "dagster/row_count": sum(report.deltas for report in reports),
        "copied": sum(report.copied for report in reports),
        "pages": sum(report.pages for report in reports),
    }


def _migration_metadata(keys: list[dg.MultiPartitionKey], reports: "list[MigrationReport]") -> Metadata:
    """Return the metadata of a migration's run, with a table of its partitions."""
    lines = []
    for key, report in zip(keys, reports, strict=True):
        part = key.keys_by_dimension
        lines.append(f"| {part['day']} | `{part['table']}` | {report.deltas:,} | {report.copied:,} |")
    return {
        **_migration_counts(reports),
        "seconds": round(sum(report.seconds for report in reports), 2),
        "report": dg.MetadataValue.md("\n".join(["| day | table | deltas | copied |", "|---|---|---:|---:|", *lines])),
    }


def _tier_asset(config: Config, name: str, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """Create the asset of a pair of tiers, with the partitions that `tier_days` returns."""
    tiers = resolve_backend(config, name)
    assert isinstance(tiers, TieredBackend)
    declared, cold = config.tiers[name], single_backends(tiers.cold)

    @dg.asset(
        key=transfer_key("tier", name),
        deps=source_keys(config, declared.hot),
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=transfer_pool("tier", name),
        description=f"Deltas of the day and older at `{declared.cold}`, compared there, deleted from `{declared.hot}`.",
        group_name="tiers",
        kinds={"spark", *(kind_of(backend.uri) for backend in cold)},
        metadata=target_metadata(backend.uri for backend in cold),
    )
    def tiered(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.transfers import move_to_tier

        until_ms = min(ms_of_days(days_of(context))[1] - 1, staging.now_ms() - tiers.max_age_ms)
        begun_ms = staging.now_ms()
        with failure_policy(context, pyspark):
            report = move_to_tier(pyspark.spark_session, name, tiers, until_ms)
            if is_requested_by(TRANSFER_SENSOR, context.run):
                staging.store.put_mark(transfer_mark("tier", name), str(begun_ms))
        return dg.MaterializeResult(metadata=_tier_metadata(report, until_ms))

    return tiered


def _tier_metadata(report: "TierReport", until_ms: int) -> Metadata:
    """Return the metadata of a run of a pair of tiers."""
    return {
        "deltas_moved": report.deltas,
        "id_sum": str(report.id_sum),
        "pages": report.pages,
        "moved_until": dg.MetadataValue.timestamp(until_ms / 1000),
    }
