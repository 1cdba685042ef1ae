"""Polls one connector: reads its source, lands the rows in the lake, and pushes the deltas to the gateway.

To land rows is to append them, as the source has them, to the connector's Iceberg tables; the deltas to push are
computed from the landed rows. A failed push therefore needs no second call to the source, and past days can be
replayed. The Dagster asset of the connector's tables calls `poll_connector` and `replay_connector`.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lakehouse.landing.delivery import Delivery, DeliveryReport
from lakehouse.landing.landings import LakeLanding, PolledSource
from lakesync.connectors import Connectors
from lakesync.connectors.polling import IngestSettings, PollReport, TableReport
from lakesync.model.errors import LakeSyncError, LakeUnavailableError, NotFoundError, StagingUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from lakehouse.gateway_connections import OpenIntake
    from lakehouse.table_definitions import LakeNames
    from lakesync.config import Config
    from lakesync.connectors.base import Table
    from lakesync.staging.store.pipeline import FlushStore


class Connection(NamedTuple):
    """The connections of a run that a poll needs."""

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
        found = {str(each.error): each.error for each in self.tables if each.error is not None}
        return list(found.values())


def poll_connector(
    connection: Connection, gateway: str, name: str, tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Read the changes at a connector's source, land them, and push the deltas. Tables fail independently.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        tables: names of the tables to poll; None for all.

    Raises:
        NotFoundError: there is no such connector.
        ConfigurationError: its secrets cannot be read.
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached.
    """
    with ExitStack() as stack:
        polled, landing, delivery, ingest = _open(stack, connection, gateway, name)
        report = landing.poll(ingest, tables)
        done = ConnectorPoll([], report)
        for table, read in zip(polled.tables, report.tables, strict=True):
            if tables is None or table.name in tables:
                done.tables.append(_deliver(delivery, table, read))
        return done


def replay_connector(
    connection: Connection, gateway: str, name: str, days: Sequence[date], tables: Collection[str] | None = None
) -> ConnectorPoll:
    """Push the deltas that landed on past days again, without a call to the source.

    Args:
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.
        days: UTC days on which rows landed.
        tables: names of the tables whose deltas are pushed; None for all.

    Raises:
        NotFoundError, ConfigurationError, LakeUnavailableError, StagingUnavailableError: as `poll_connector`.
    """
    with ExitStack() as stack:
        polled, _, delivery, _ = _open(stack, connection, gateway, name)
        done = ConnectorPoll([])
        for table in polled.tables:
            if tables is not None and table.name not in tables:
                continue
            each = TablePoll(table.name)
            done.tables.append(each)
            try:
                each.delivered = delivery.replay(table, days)
            except (LakeUnavailableError, StagingUnavailableError):
                raise
            except LakeSyncError as error:
                each.error = error
        return done


def _open(
    stack: ExitStack, connection: Connection, gateway: str, name: str
) -> tuple[PolledSource, LakeLanding, Delivery, IngestSettings]:
    """Open a registered connector's source, its landed tables and the connection to its gateway.

    Args:
        stack: closes the source at the end.
        connection: the connections of the run.
        gateway: the connector's gateway.
        name: the connector's name.

    Returns:
        The source, what lands its rows, what pushes them, and the connector's `ingest` settings.

    Raises:
        NotFoundError: there is no such connector, or it is not polled.
        ConfigurationError: its secrets cannot be read.
    """
    config, spark, names, store, now_ms, open_intake = connection
    stored = next((each for each in store.connectors(gateway) if each.name == name), None)
    if stored is None or stored.ingest is None:
        raise NotFoundError(f"gateway {gateway!r} has no connector {name!r} that is polled: register it with `ingest`")
    types = Connectors.configured(config)
    opened = types.open(gateway, stored)
    kind = types.find(stored.type)
    assert kind is not None
    source = stack.enter_context(closing(kind.open_source(opened)))
    ingest = IngestSettings.of(stored.ingest)
    polled = PolledSource(opened, kind.open_source, source.tables)
    landing = LakeLanding(spark, polled, now_ms, names)
    delivery = Delivery(
        landing,
        open_intake,
        gateway,
        lambda: store.request_flush(gateway),
        chunk=ingest.chunk_size,
    )
    return polled, landing, delivery, ingest


def _deliver(delivery: Delivery, table: Table, read: TableReport) -> TablePoll:
    """Push what has landed of a table. It does so too if reading the table failed after some pages.

    An error of this table is returned in the result, so that the other tables go on.

    Raises:
        LakeUnavailableError, StagingUnavailableError: Spark or the gateway cannot be reached, so no table could go on.
    """
    done = TablePoll(table.name, read, error=read.error)
    try:
        done.delivered = delivery.deliver(table)
    except (LakeUnavailableError, StagingUnavailableError):
        raise
    except LakeSyncError as error:
        done.error = done.error or error
    return done
