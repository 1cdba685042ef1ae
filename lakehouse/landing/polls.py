"""Polls and replays connectors: reads a connector's source, lands the rows in the lake, and pushes the deltas.

A connector's source is its external system, such as a Jira site. To *land* rows is to append them, as the source has
them, to the Iceberg table `landing`; the deltas (changes of rows) to push to the gateway (an app's stream of changes)
are computed from the landed rows. A failed push therefore needs no second call to the source, and past days can be
replayed. The Dagster assets of the connectors' tables (`assets.ingest`) call `poll_connector` and `replay_connector`.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.gateway_connections import store_epochs
from lakehouse.landing.delivery import Delivery, DeliveryReport
from lakehouse.landing.lake_landing import LakeLanding, PolledSource
from lakesync.connectors import Connectors
from lakesync.connectors.polling import IngestSettings, PollReport, TableReport
from lakesync.model.errors import (
    LakeSyncError,
    LakeUnavailableError,
    NotFoundError,
    SchemaError,
    StagingUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from lakehouse.gateway_connections import OpenIntake
    from lakehouse.table_definitions import LakeNames
    from lakesync.config import Config
    from lakesync.staging.store.pipeline import FlushStore


class PollContext(NamedTuple):
    """What a poll or replay works with: the connections of the run, and the project's configuration."""

    config: Config
    spark: SparkSession
    names: LakeNames
    """Catalogue and namespaces of the lake's tables."""
    store: FlushStore
    now_ms: Callable[[], int]
    """Returns the server wall time in milliseconds since 1970, by the gateways' clock."""
    open_intake: OpenIntake
    """Opens the connection that pushes to the gateway."""


@dataclass
class TablePoll:
    """The result of a poll or replay for one table."""

    table: str
    read: TableReport | None = None
    """What was read from the source; None in a replay."""
    delivered: DeliveryReport = field(default_factory=DeliveryReport)
    """What was pushed to the gateway."""
    error: LakeSyncError | None = None
    """Why the table was not read or pushed completely; None if it was. The next poll continues from there."""


@dataclass
class ConnectorPoll:
    """The result of a poll or replay of a connector."""

    tables: list[TablePoll]
    report: PollReport = field(default_factory=PollReport)
    """What the poll read from the source; empty in a replay."""

    @property
    def errors(self) -> list[LakeSyncError]:
        """The errors of the tables, each message once."""
        by_message = {str(each.error): each.error for each in self.tables if each.error is not None}
        return list(by_message.values())


def poll_connector(
    context: PollContext, gateway: str, name: str, tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Read the changes at a connector's source, land them, and push the deltas. Tables fail independently.

    Args:
        context: the connections of the run, and the configuration.
        gateway: the connector's gateway.
        name: the connector's name.
        tables: names of the tables to poll; None for all.

    Raises:
        NotFoundError: there is no such connector.
        ConfigurationError: its secrets cannot be read.
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached.
    """
    with _opened(context, gateway, name) as opened:
        report = opened.landing.poll(opened.settings, tables)
        result = ConnectorPoll([], report)
        for table, read in zip(opened.source.tables, report.tables, strict=True):
            if tables is None or table.name in tables:
                # also if reading failed after some pages: these have landed
                pushed = _push(partial(opened.delivery.deliver, table), TablePoll(table.name, read, error=read.error))
                result.tables.append(pushed)
        return result


def replay_connector(
    context: PollContext, gateway: str, name: str, days: Sequence[date], tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Push the deltas that landed on past days again, without a call to the source.

    Args:
        context: the connections of the run, and the configuration.
        gateway: the connector's gateway.
        name: the connector's name.
        days: UTC days on which rows landed.
        tables: names of the tables whose deltas are pushed; None for all.

    Raises:
        NotFoundError, ConfigurationError, LakeUnavailableError, StagingUnavailableError: as `poll_connector`.
    """
    with _opened(context, gateway, name) as opened:
        wanted = [table for table in opened.source.tables if tables is None or table.name in tables]
        replay = opened.delivery.replay
        return ConnectorPoll([_push(partial(replay, table, days), TablePoll(table.name)) for table in wanted])


class _OpenedConnector(NamedTuple):
    """A polled connector whose source is open."""

    source: PolledSource
    settings: IngestSettings
    landing: LakeLanding
    """Reads the source and lands the rows."""
    delivery: Delivery
    """Pushes the deltas that follow from landed rows."""


@contextmanager
def _opened(context: PollContext, gateway: str, name: str) -> Iterator[_OpenedConnector]:
    """Open a connector's source for the `with` block.

    Raises:
        NotFoundError: there is no such connector, or it is not polled.
        ConfigurationError: its secrets cannot be read.
    """
    config, spark, names, store, now_ms, open_intake = context
    stored = next((each for each in store.connectors(gateway) if each.name == name), None)
    if stored is None or stored.ingest is None:
        raise NotFoundError(f"gateway {gateway!r} has no connector {name!r} that is polled: register it with `ingest`")
    types = Connectors.configured(config)
    opened = types.open(gateway, stored)
    connector_type = types.find(stored.type)
    assert connector_type is not None
    ingest = IngestSettings.of(stored.ingest)

    def needs_schema(table: str) -> bool:
        registered = store.gateway_config(gateway)
        return table not in registered.schemas and table not in registered.retired

    with closing(connector_type.open_source(opened)) as source:
        polled = PolledSource(opened, connector_type.open_source, source.tables)
        landing = LakeLanding(spark, polled, now_ms, names, store_epochs(store, gateway))
        request_flush = partial(store.request_flush, gateway)
        delivery = Delivery(
            landing, open_intake, gateway, request_flush, needs_schema=needs_schema, chunk=ingest.chunk_size
        )
        yield _OpenedConnector(polled, ingest, landing, delivery)


def _push(push: Callable[[], DeliveryReport], result: TablePoll) -> TablePoll:
    """Push a table's deltas, and return its result with the report, or with the error, so that other tables go on.

    Args:
        push: pushes the deltas.
        result: the table's result so far. If it has an error already, that stays.

    Raises:
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached, so no table could go on.
    """
    try:
        result.delivered = push()
    except (LakeUnavailableError, StagingUnavailableError):
        raise
    except SchemaError as error:
        result.error = result.error or SchemaError(
            f"{error}. If the source's types have changed, run `lakesync schema retire {result.table}`: the next poll "
            "continues; then register the new types with `lakesync schema apply`"
        )
    except LakeSyncError as error:
        result.error = result.error or error
    return result
