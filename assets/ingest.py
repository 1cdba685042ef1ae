"""Creates an asset for each table of each connector.

A connector reads an external system, its source, at intervals (it polls), and pushes the changes to a gateway (one
app's stream of changes) as a client would. A poll first appends what it reads to the lake's table `landing` (the rows
land), and then pushes it. A replay pushes again what landed on past days, without a call to the source.
`lakehouse.landing.polls` does both. The code location (`lakesync_dagster.definitions`) calls `connectors`. A pool is a
name that steps share, of which Dagster runs one at a time: the steps of an erasure (`assets.erasure`) use the pool of
the connector whose rows they erase.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.asset_metadata import Metadata
from assets.columns import client_columns
from assets.failure_policy import failure_policy
from assets.names import POLL_SENSOR, is_requested_by, polled_key
from assets.partitions import days_of
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.config import Config
from resources.spark import SparkConnectResource
from resources.stores import IntakeResource, LakeResource, StagingResource, table_uri

if TYPE_CHECKING:
    from lakehouse.landing.polls import ConnectorPoll, TablePoll

GROUP = "ingest"
"""Group of the assets on Dagster's pages."""
_TIMES = ("updated", "modified")
"""Fields of the cursors of Jira and Salesforce that are times, in milliseconds since 1970."""


class Poll(dg.Config):
    """The run configuration of a connector's assets."""

    poll: bool = False
    """Poll the source now, instead of replaying what landed on the selected days."""


def connectors(snapshot: SchemaSnapshot, days: dg.PartitionsDefinition, config: Config) -> list[dg.AssetsDefinition]:
    """Create an asset for each table of every connector that is polled.

    A run that the poll sensor requests polls the source. Any other run replays what landed on its days, unless its
    configuration has `poll: true`. Both work only on the tables that the run selects.

    Args:
        snapshot: the registered tables and connectors, as they were when Dagster loaded its definitions.
        days: partitions by the UTC day on which rows landed.
        config: the project's configuration.
    """
    return [_connector_tables(each, days, snapshot, config) for each in snapshot.connectors]


def table_metadata(table: "TablePoll", connector_result: "ConnectorPoll") -> Metadata:
    """Return the metadata of one table after a poll or a replay.

    Args:
        table: the result for the table. `table.read` is None after a replay, which does not read the source.
        connector_result: the result for the connector.
    """
    delivered = table.delivered
    metadata: Metadata = {
        "inserted": delivered.inserted,
        "updated": delivered.updated,
        "deleted": delivered.deleted,
        "pushes": delivered.pushes,
        "waited_s": round(delivered.waited_s, 2),
    }
    read = table.read
    if read is None:
        return metadata
    usage = connector_result.report.usage
    metadata |= {
        "pages": read.pages,
        "rows": read.rows,
        # not below 0: `delivered` also counts deltas of rows that earlier polls landed but did not push
        "unchanged": max(0, read.rows - delivered.inserted - delivered.updated),
        "counted": read.census_taken,  # a census lists all ids that the source has, to find deleted rows
        "calls": usage.calls,
        "seconds": round(connector_result.report.seconds, 2),
        **_cursor(read.cursor),
    }
    if usage.left is not None:  # the source reports how many calls its quota still allows
        metadata["budget_left"] = usage.left
    return metadata


def connector_pool(gateway: str, name: str) -> str:
    """Return the pool of a connector's steps. The name has only characters that Dagster accepts, and is unique.

    Args:
        gateway: id of the connector's gateway.
        name: the connector's name.
    """
    plain = re.sub(r"[^A-Za-z0-9]", "_", f"{gateway}__{name}")
    return f"poll_{plain}_{zlib.crc32(f'{gateway}/{name}'.encode()):08x}"


def _connector_tables(
    connector: PolledConnector, days: dg.PartitionsDefinition, snapshot: SchemaSnapshot, settings: Config
) -> dg.AssetsDefinition:
    """Create the assets of a connector's tables. They are one step, because they share one session at their source."""
    gateway, name = connector.gateway, connector.name

    @dg.multi_asset(
        name=connector_pool(gateway, name),
        specs=_specs(connector, snapshot, settings),
        can_subset=True,
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=connector_pool(gateway, name),
        description=f"Polls `{name}`, or pushes again what it brought on past days.",
    )
    def polled(
        context: dg.AssetExecutionContext,
        config: Poll,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        intake: IntakeResource,
    ) -> Iterator[dg.MaterializeResult[None]]:
        from lakehouse.landing.polls import PollContext, poll_connector, replay_connector
        from lakehouse.marks import record_poll

        is_poll = config.poll or is_requested_by(POLL_SENSOR, context.run)
        wanted = [
            table for table in connector.tables if polled_key(gateway, name, table) in context.selected_asset_keys
        ]
        begun_ms = staging.now_ms()
        with failure_policy(context, pyspark):
            poll_context = PollContext(
                settings, pyspark.spark_session, lake.names, staging.store, staging.now_ms, intake.opener
            )
            result = (
                poll_connector(poll_context, gateway, name, wanted)
                if is_poll
                else replay_connector(poll_context, gateway, name, days_of(context), wanted)
            )
            failed = {table.table: table.error for table in result.tables if table.error is not None}
            if is_poll:  # even if a table failed; the next poll continues where this one stopped
                succeeded = {table: table not in failed for table in wanted}
                record_poll(staging.store, connector, succeeded, begun_ms, staging.now_ms())
        for table in result.tables:
            if table.error is None:
                key = polled_key(gateway, name, table.table)
                yield dg.MaterializeResult(asset_key=key, metadata=table_metadata(table, result))
        if failed:
            raise dg.Failure(
                description="; ".join(f"{error.code}: {error}" for error in result.errors),
                metadata={table: f"{error.code}: {error}" for table, error in failed.items()},
                # The poll sensor polls failing tables again, by the mark that `record_poll` writes. A replay that fails
                # is repeated by hand.
                allow_retries=False,
            )

    return polled


def _specs(connector: PolledConnector, snapshot: SchemaSnapshot, settings: Config) -> list[dg.AssetSpec]:
    """Return the specification of each asset of a connector, with its schema, and when Dagster shows it as late."""
    late_after_seconds = max(settings.dagster.late_after_seconds, 60)
    # Dagster shows an asset as late after three missed polls, and no earlier than `late_after_seconds`
    window = max(timedelta(milliseconds=3 * connector.interval_ms), timedelta(seconds=late_after_seconds))
    return [
        dg.AssetSpec(
            polled_key(connector.gateway, connector.name, table),
            description=f"What the {connector.type} connector `{connector.name}` brought into `{table}` of gateway "
            f"`{connector.gateway}`.",
            group_name=GROUP,
            kinds={"spark", "iceberg", connector.type},
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=window),
            metadata={
                "gateway": connector.gateway,
                "connector": connector.name,
                "type": connector.type,
                "every_ms": connector.interval_ms,
                "dagster/column_schema": client_columns(snapshot.schema(table)),
                "dagster/uri": table_uri(settings.lake.warehouse, settings.lake.system_namespace, "landing"),
            },
        )
        for table in connector.tables
    ]


def _cursor(cursor: Mapping[str, Any] | None) -> Metadata:
    """Return the metadata of a source's cursor, from which the next poll reads on: as JSON, and the time in it, if any.

    A database's cursor has the greatest value read so far in `at`, which may be a time.
    """
    if cursor is None:
        return {}
    metadata: Metadata = {"cursor_json": dg.MetadataValue.json(dict(cursor))}
    seconds = next((cursor[name] / 1000 for name in _TIMES if isinstance(cursor.get(name), int)), None)
    if seconds is None:
        seconds = _seconds_of(cursor.get("at"))
    if seconds:
        metadata["cursor"] = dg.MetadataValue.timestamp(seconds)
    return metadata


def _seconds_of(text: object) -> float | None:
    """Return a time in ISO 8601 as seconds since 1970 (UTC if it has no time zone); None if the value is not a time."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
