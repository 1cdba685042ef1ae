"""Creates an asset for each migration: a copy of whole tables from one backend to another, compared with its source.

It is partitioned by day (of the deltas' hlc) and table. `lakehouse.backends.moves` does the work.
`lakesync_dagster.movement` calls this module.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import OWNERS, day_of_key
from assets.columns import followed_columns
from assets.external import kind_of, source_keys
from assets.failure_policy import failure_policy
from lakehouse.backends.copied_days import MIGRATIONS, record_copied, utc_day
from lakehouse.backends.declared import migration_task
from lakesync.adapters.backend_config import resolve_backend, single_backends
from lakesync.config import Config
from lakesync.config.backends import DeclaredMigration
from lakesync.model.secrets import without_password
from resources.gateways import StagingResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.transfer.migration import MigrationReport


def migrations(config: Config) -> list[dg.AssetsDefinition]:
    """Create an asset for each migration that the configuration declares."""
    return [migration_asset(config, name, declared) for name, declared in config.migrations.items()]


def migration_key(name: str) -> dg.AssetKey:
    """Return the asset of a migration."""
    return dg.AssetKey([MIGRATIONS, name])


def migration_asset(config: Config, name: str, declared: DeclaredMigration) -> dg.AssetsDefinition:
    """Create the asset of a migration. Each day of each table in a run is a Spark task, or several if it is large.

    Args:
        config: the project's configuration, which declares the backends.
        name: the migration's name.
        declared: the migration's declaration.
    """
    target = single_backends(resolve_backend(config, declared.to))

    @dg.asset(
        key=migration_key(name),
        deps=source_keys(config, declared.source),
        partitions_def=_partitions(declared),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_migration_{name}",
        description=f"The deltas of a day and table of `{declared.source}` at `{declared.to}`, compared with it.",
        group_name=MIGRATIONS,
        kinds={"spark", *(kind_of(backend.uri) for backend in target)},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": followed_columns(),
            "dagster/uri": ", ".join(without_password(backend.uri) for backend in target),
        },
    )
    def migrated(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.moves import migrate

        today = utc_day(staging.now_ms())
        keys = [key for key in context.partition_keys if isinstance(key, dg.MultiPartitionKey)]
        tables_and_days = [_table_and_day(key) for key in keys]
        with failure_policy(context, pyspark):
            tasks = [migration_task(config, name, declared, table, day) for table, day in tables_and_days]
            reports = migrate(pyspark.spark_session, tasks)
            record_copied(staging.store, name, tables_and_days, today)
        for key, report in zip(keys, reports, strict=True):
            context.add_asset_metadata(_copied([report]), partition_key=key)
        return dg.MaterializeResult(metadata=_metadata(keys, reports))

    return migrated


def _partitions(declared: DeclaredMigration) -> dg.MultiPartitionsDefinition:
    """Return the partitions of a migration, by day and table."""
    end = declared.until + timedelta(days=1) if declared.until is not None else None
    days = dg.DailyPartitionsDefinition(
        start_date=f"{declared.since:%Y-%m-%d}",
        end_date=None if end is None else f"{end:%Y-%m-%d}",
        timezone="UTC",
        end_offset=1 if end is None else 0,
    )
    return dg.MultiPartitionsDefinition({"day": days, "table": dg.StaticPartitionsDefinition(list(declared.tables))})


def partition_key(table: str, day: date) -> dg.MultiPartitionKey:
    """Return the key of the partition of a table and a UTC day.

    Args:
        table: the table's name.
        day: the UTC day.
    """
    return dg.MultiPartitionKey({"day": day.isoformat(), "table": table})


def _table_and_day(key: dg.MultiPartitionKey) -> tuple[str, date]:
    return key.keys_by_dimension["table"], day_of_key(key.keys_by_dimension["day"])


def _copied(reports: "Sequence[MigrationReport]") -> dict[str, int]:
    return {
        "dagster/row_count": sum(report.deltas for report in reports),
        "copied": sum(report.copied for report in reports),
        "pages": sum(report.pages for report in reports),
    }


def _metadata(
    keys: list[dg.MultiPartitionKey], reports: "list[MigrationReport]"
) -> dict[str, dg.MetadataValue | str | int | float]:
    lines = []
    for key, report in zip(keys, reports, strict=True):
        part = key.keys_by_dimension
        lines.append(f"| {part['day']} | `{part['table']}` | {report.deltas:,} | {report.copied:,} |")
    return {
        **_copied(reports),
        "seconds": round(sum(report.seconds for report in reports), 2),
        "report": dg.MetadataValue.md("\n".join(["| day | table | deltas | copied |", "|---|---|---:|---:|", *lines])),
    }
