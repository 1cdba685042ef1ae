"""One asset a migration, partitioned by day (hlc) and table: copied, compared, and resumed where it was cut short."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import msgspec

from assets.asset_metadata import OWNERS, day_of_key, move_mark
from assets.backends import kind_of, source_keys
from assets.columns import followed_columns
from assets.failure_policy import failure_policy
from lakesync.adapters.backend_config import resolve_backend, single_backends
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config.backends import DeclaredMigration
from lakesync.model import hlc
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.backends.moves import Migration
    from lakesync.adapters.transfer.migration import MigrationReport

GROUP = "migrations"
_DAY = timedelta(days=1)


class CopiedDays(msgspec.Struct, frozen=True):
    """A migration's mark in staging: the days that were copied after they had ended."""

    tables: dict[str, list[tuple[date, date]]] = {}
    """Table → first and last day of each stretch without a gap, ascending."""

    @classmethod
    def of(cls, marks: Mapping[str, str], name: str) -> "CopiedDays":
        """Read the mark of a migration; before its first run no day was copied.

        Args:
            marks: of staging.
            name: of the migration.
        """
        text = marks.get(move_mark(GROUP, name))
        return msgspec.json.decode(text, type=cls) if text is not None else cls()

    def has(self, table: str, day: date) -> bool:
        """Return whether a day of a table was copied.

        Args:
            table: the table.
            day: a UTC day by hlc.
        """
        return any(first <= day <= last for first, last in self.tables.get(table, ()))

    def with_day(self, table: str, day: date) -> "CopiedDays":
        """Return the mark after a day of a table was copied.

        Args:
            table: the table.
            day: a UTC day by hlc.
        """
        joined: list[tuple[date, date]] = []
        for first, last in sorted([*self.tables.get(table, ()), (day, day)]):
            if joined and first <= joined[-1][1] + _DAY:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return CopiedDays({**self.tables, table: joined})


def migrations(config: Config) -> list[dg.AssetsDefinition]:
    """Create an asset for each migration."""
    return [migration_asset(config, name, declared) for name, declared in config.migrations.items()]


def migration_key(name: str) -> dg.AssetKey:
    """Return the asset of a migration."""
    return dg.AssetKey([GROUP, name])


def migration_asset(config: Config, name: str, declared: DeclaredMigration) -> dg.AssetsDefinition:
    """Create the asset of a migration; the days and tables of one run are tasks that executors share.

    Args:
        config: names the places.
        name: of the migration.
        declared: the migration.
    """
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
    def migrated(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from lakehouse.backends.moves import migrate

        today = _utc_day(staging.now_ms())
        keys = [key for key in context.partition_keys if isinstance(key, dg.MultiPartitionKey)]
        with failure_policy(context, pyspark):
            reports = migrate(pyspark.spark_session, [_work(config, name, declared, key) for key in keys])
            _note_copied(staging.store, name, keys, today)
        for key, report in zip(keys, reports, strict=True):
            context.add_asset_metadata(_copied([report]), partition_key=key)
        return dg.MaterializeResult(metadata=_metadata(keys, reports))

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


def first_day_left(copied: CopiedDays, declared: DeclaredMigration) -> date | None:
    """Return the first day that was not copied of every table; None where the migration is complete.

    Args:
        copied: the migration's mark.
        declared: the migration.
    """
    day = declared.since
    while all(copied.has(table, day) for table in declared.tables):
        day = min(last for table in declared.tables for first, last in copied.tables[table] if first <= day <= last)
        day += _DAY
    return day if declared.until is None or day <= declared.until else None


def days_to_copy(copied: CopiedDays, declared: DeclaredMigration, now_ms: int) -> tuple[str, str] | None:
    """Return the first and last partition of the days that have ended and were not copied; None where there are none.

    Args:
        copied: the migration's mark.
        declared: the migration.
        now_ms: server wall time; the days before its own have ended.
    """
    last = min(_utc_day(now_ms) - _DAY, declared.until or date.max)
    day = first_day_left(copied, declared)
    if day is None or day > last:
        return None
    while all(copied.has(table, last) for table in declared.tables):
        last -= _DAY
    first_key, last_key = (
        dg.MultiPartitionKey({"day": each.isoformat(), "table": table})
        for each, table in ((day, declared.tables[0]), (last, declared.tables[-1]))
    )
    return first_key, last_key


def _utc_day(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000, UTC).date()


def _note_copied(store: PipelineStore, name: str, keys: Sequence[dg.MultiPartitionKey], today: date) -> None:
    """Write the migration's mark; a day that had not ended when the run began is copied again."""
    copied = CopiedDays.of(store.marks(), name)
    for key in keys:
        day = day_of_key(key.keys_by_dimension["day"])
        if day < today:
            copied = copied.with_day(key.keys_by_dimension["table"], day)
    store.put_mark(move_mark(GROUP, name), msgspec.json.encode(copied).decode())


def _work(config: Config, name: str, declared: DeclaredMigration, key: dg.MultiPartitionKey) -> "Migration":
    from lakehouse.backends.moves import Migration
    from lakesync.adapters.transfer.migration import MigrationScope

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
