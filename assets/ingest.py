"""One asset for each table of each connector that is polled, made from the schema snapshot."""

import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import msgspec

from assets.asset_metadata import (
    LOG,
    OWNERS,
    POLL_SENSOR,
    days_of,
    failed_polls_mark,
    is_requested_by,
    poll_mark,
    polled_key,
)
from assets.columns import client_columns
from assets.failure_policy import failure_policy
from assets.run_metrics import Metadata
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.analysis.marks import FailedPolls
from lakesync.config import Config
from lakesync.staging.store import PipelineStore
from resources.gateways import IntakeResource, StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource
from resources.uris import table_uri

if TYPE_CHECKING:
    from lakehouse.landing.polls import ConnectorPoll, TablePoll

GROUP = "ingest"

_TIMES = ("updated", "modified")
"""Fields of APIs' cursors that are moments, in milliseconds since the epoch."""


class Ask(dg.Config):
    """What a run of a connector's tables does."""

    poll: bool = False
    """Ask the source now, rather than push what landed on the chosen days again."""


def ingested(snapshot: SchemaSnapshot, days: dg.PartitionsDefinition, config: Config) -> list[dg.AssetsDefinition]:
    """Create the tables of every connector that is polled.

    Args:
        snapshot: names the connectors.
        days: UTC days of landing.
        config: names the lake.
    """
    return [connector_tables(each, days, snapshot, config) for each in snapshot.connectors]


def fed_log(assets: list[dg.AssetSpec], snapshot: SchemaSnapshot) -> list[dg.AssetSpec]:
    """Return external assets with the log also downstream of what connectors push to it.

    Args:
        assets: the external assets.
        snapshot: names the connectors.
    """
    keys = [polled_key(each.gateway, each.name, table) for each in snapshot.connectors for table in each.tables]
    return [spec.replace_attributes(deps=[*spec.deps, *keys]) if spec.key == LOG and keys else spec for spec in assets]


def connector_tables(
    connector: PolledConnector, days: dg.PartitionsDefinition, snapshot: SchemaSnapshot, settings: Config
) -> dg.AssetsDefinition:
    """Create a connector's tables: one step, because they share one session at their source.

    A run of the poll sensor asks the source. Any other run replays what landed on its days, without one call, unless
    its configuration says to poll.

    Args:
        connector: the connector.
        days: UTC days of landing.
        snapshot: has the tables' schemas.
        settings: names the lake.
    """
    gateway, name = connector.gateway, connector.name
    late = max(settings.dagster.late_after_seconds, 60)
    window = max(timedelta(milliseconds=3 * connector.interval_ms), timedelta(seconds=late))
    specs = [
        dg.AssetSpec(
            polled_key(gateway, name, table),
            description=f"What the {connector.type} connector `{name}` brought into `{table}` of gateway `{gateway}`.",
            group_name=GROUP,
            kinds={"spark", "iceberg", connector.type},
            owners=OWNERS,
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=window),
            metadata={
                "gateway": gateway,
                "connector": name,
                "type": connector.type,
                "every_ms": connector.interval_ms,
                "dagster/column_schema": client_columns(snapshot.schema(table)),
                "dagster/uri": table_uri(settings, settings.lake.system_namespace, "landing"),
            },
        )
        for table in connector.tables
    ]

    @dg.multi_asset(
        name=pool_of(gateway, name),
        specs=specs,
        can_subset=True,
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=pool_of(gateway, name),
        description=f"Polls `{name}`, or pushes again what it brought on past days.",
    )
    def polled(
        context: dg.AssetExecutionContext,
        config: Ask,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        intake: IntakeResource,
    ) -> Iterator[dg.MaterializeResult[None]]:
        from lakehouse.landing.polls import Connection, poll_connector, replay_connector

        asks = config.poll or is_requested_by(POLL_SENSOR, context)
        begun_ms = staging.now_ms()
        with failure_policy(context, pyspark):
            connection = Connection(
                settings, pyspark.spark_session, lake.names, staging.store, staging.now_ms, intake.opener
            )
            done = (
                poll_connector(connection, gateway, name)
                if asks
                else replay_connector(connection, gateway, name, days_of(context))
            )
            failed = [table for table in done.tables if table.error is not None]
            if asks:
                note_poll(staging.store, gateway, name, begun_ms, len(done.tables), len(failed))
        for table in done.tables:
            key = polled_key(gateway, name, table.table)
            if table.error is None and key in context.selected_asset_keys:
                yield dg.MaterializeResult(asset_key=key, metadata=table_metadata(table, done))
        if failed:
            raise dg.Failure(
                description="; ".join(f"{error.code}: {error}" for error in done.errors),
                metadata={table.table: f"{table.error.code}: {table.error}" for table in failed if table.error},
                allow_retries=False,
            )

    return polled


def note_poll(store: PipelineStore, gateway: str, name: str, begun_ms: int, tables: int, failed: int) -> None:
    """Write a connector's marks after a poll that ended.

    The mark stays where no table succeeded, so that the sensor retries after a growing pause. If one did, the next poll
    is due at the connector's interval, because a table that fails delays no other.

    Args:
        store: the staging store.
        gateway: of the connector.
        name: the connector's.
        begun_ms: when the poll began, in milliseconds of server wall time.
        tables: number of the connector's tables.
        failed: number of those that were not read, or not pushed, to their end.
    """
    of_failures = failed_polls_mark(gateway, name)
    text = store.marks().get(of_failures)
    known = msgspec.json.decode(text, type=FailedPolls) if text is not None else FailedPolls(0, 0)
    if failed:
        since_ms = known.since_ms if known.count else begun_ms
        store.put_mark(of_failures, msgspec.json.encode(FailedPolls(known.count + 1, since_ms)).decode())
    elif known.count:
        store.put_mark(of_failures, msgspec.json.encode(FailedPolls(0, begun_ms)).decode())
    if failed < tables or not tables:
        store.put_mark(poll_mark(gateway, name), str(begun_ms))


def table_metadata(table: "TablePoll", done: "ConnectorPoll") -> Metadata:
    """Return the metadata of one table after a poll or a replay.

    Args:
        table: the table's part of it.
        done: the poll or replay.
    """
    given = table.delivered
    found: Metadata = {
        "inserted": given.inserted,
        "updated": given.updated,
        "deleted": given.deleted,
        "pushes": given.pushes,
        "waited_s": round(given.waited_s, 2),
    }
    read = table.read
    if read is None:
        return found
    usage = done.report.usage
    found |= {
        "pages": read.pages,
        "rows": read.rows,
        "unchanged": max(0, read.rows - given.inserted - given.updated),
        "counted": read.counted,
        "calls": usage.calls,
        "seconds": round(done.report.seconds, 2),
        **_cursor(read.cursor),
    }
    if usage.left is not None:
        found["budget_left"] = usage.left
    return found


def _cursor(cursor: Mapping[str, Any] | None) -> Metadata:
    """The cursor as it is, and the moment in it."""
    metadata: Metadata = {}
    if cursor is None:
        return metadata
    metadata["cursor_json"] = dg.MetadataValue.json(dict(cursor))
    moment = next((cursor[name] / 1000 for name in _TIMES if isinstance(cursor.get(name), int)), None)
    if moment is None:
        moment = _moment(cursor.get("at"))
    if moment:
        metadata["cursor"] = dg.MetadataValue.timestamp(moment)
    return metadata


def _moment(text: object) -> float | None:
    """Seconds since the epoch of a database's cursor that is a time; one without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:  # a text that grows and is no time
        return None
    return None if moment is None else (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def pool_of(gateway: str, name: str) -> str:
    """Return a connector's pool, in letters that Dagster accepts; each connector has another.

    Args:
        gateway: of the connector.
        name: the connector's.
    """
    plain = re.sub(r"[^A-Za-z0-9]", "_", f"{gateway}__{name}")
    return f"poll_{plain}_{zlib.crc32(f'{gateway}/{name}'.encode()):08x}"
