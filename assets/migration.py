"""One asset a migration, partitioned by day (hlc) and table: copied, compared, and resumed where it was cut short."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.backends import kind_of, source_keys
from assets.columns import followed_columns
from assets.labels import OWNERS, day_of_key
from assets.outcome import outcome
from lakesync.adapters.backend_config import resolve_backend, single_backends
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config.backends import DeclaredMigration
from lakesync.model import hlc
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.transfer.migration import MigrationReport
    from resources.moves import Migration

GROUP = "migrations"


def migrations(config: Config) -> list[dg.AssetsDefinition]:
    """An asset for each migration."""
    return [migration_asset(config, name, declared) for name, declared in config.migrations.items()]


def migration_key(name: str) -> dg.AssetKey:
    """The asset of a migration."""
    return dg.AssetKey([GROUP, name])


def migration_asset(config: Config, name: str, declared: DeclaredMigration) -> dg.AssetsDefinition:
    """A migration; the days and tables of one run are tasks that executors share."""
    target = single_backends(resolve_backend(config, declared.to))

    @dg.asset(
        key=migration_key(name),
        deps=source_keys(config, declared.source),
        partitions_def=_partitions(declared),
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=f"lakesync_migration_{name}",
        description=f"The deltas of a day and table of `{declared.source}` at `{declared.to}`, compared with it.",
        group_name=GROUP,
        kinds={"spark", *(kind_of(backend.uri) for backend in target)},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": followed_columns(),
            "dagster/uri": ", ".join(without_password(backend.uri) for backend in target),
        },
    )
    def migrated(context: dg.AssetExecutionContext, pyspark: SparkConnectResource) -> dg.MaterializeResult[None]:
        from resources.moves import migrate

        keys = [key for key in context.partition_keys if isinstance(key, dg.MultiPartitionKey)]
        with outcome(context, pyspark):
            reports = migrate(pyspark.spark_session, [_work(config, name, declared, key) for key in keys])
        for key, report in zip(keys, reports, strict=True):
            context.add_asset_metadata(_copied([report]), partition_key=key)
        return dg.MaterializeResult(metadata=_told(keys, reports))

    return migrated


def _partitions(declared: DeclaredMigration) -> dg.MultiPartitionsDefinition:
    end = declared.until + timedelta(days=1) if declared.until is not None else None
    days = dg.DailyPartitionsDefinition(
        start_date=f"{declared.since:%Y-%m-%d}",
        end_date=None if end is None else f"{end:%Y-%m-%d}",
        timezone="UTC",
        end_offset=1 if end is None else 0,
    )
    return dg.MultiPartitionsDefinition({"day": days, "table": dg.StaticPartitionsDefinition(list(declared.tables))})


def ended_days(
    instance: dg.DagsterInstance, name: str, declared: DeclaredMigration, now: datetime
) -> tuple[str, str] | None:
    """Return the first and last partition of what has ended and was not copied whole; None where there is nothing.

    Args:
        instance: Dagster's.
        name: of the migration.
        declared: the migration.
        now: the days before its own have ended.
    """
    made = instance.get_materialized_partitions(migration_key(name))
    today = f"{now:%Y-%m-%d}"
    left = [
        key.keys_by_dimension["day"]
        for key in _partitions(declared).get_partition_keys()
        if key.keys_by_dimension["day"] < today and key not in made
    ]
    if not left:
        return None
    first, last = (
        dg.MultiPartitionKey({"day": day, "table": table})
        for day, table in ((min(left), declared.tables[0]), (max(left), declared.tables[-1]))
    )
    return first, last


def _work(config: Config, name: str, declared: DeclaredMigration, key: dg.MultiPartitionKey) -> "Migration":
    from lakesync.adapters.transfer.migration import MigrationScope
    from resources.moves import Migration

    table, day = key.keys_by_dimension["table"], day_of_key(key.keys_by_dimension["day"])
    scope = MigrationScope(declared.gateway, (table,), _start(day) - 1, _start(day + timedelta(days=1)) - 1)
    return Migration(
        f"migrations/{name}/{table}/{day}",
        resolve_backend(config, declared.source),
        resolve_backend(config, declared.to),
        scope,
        declared.page_size,
        str(config.data_dir / "migrations"),
    )


def _start(day: date) -> int:
    """The first hlc of a UTC day."""
    return hlc.encode(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000), 0)


def _copied(reports: "Sequence[MigrationReport]") -> dict[str, int]:
    return {
        "dagster/row_count": sum(report.deltas for report in reports),
        "copied": sum(report.copied for report in reports),
        "pages": sum(report.pages for report in reports),
    }


def _told(
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
