"""Reads committed rows of a shard's log directly from SQLite or Postgres, beside the process that owns the store.

The *log* has one row for each push, until the push is in the lake. A *gateway* is one app's stream of changes. A
*shard* is a store with some of its tables. Tasks of Spark (`lakehouse.history`) and the flush without a pipeline
(`lakesync.flush`) read batches with this module; queries and notebooks read the deltas that the lake lacks.
`PipelineStore.log_source` returns the log's address.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote

from lakesync.model.errors import StagingUnavailableError
from lakesync.model.secrets import without_password
from lakesync.model.types import RowDelta
from lakesync.staging.records import LogSource
from lakesync.wire.log import decode_body

_SQLITE = "jdbc:sqlite:"
_POSTGRES = "jdbc:postgresql://"
_ROWS = (
    "SELECT seq, arrival, body FROM {table} WHERE gateway = {placeholder} AND shard = {placeholder}"
    " AND epoch = {placeholder} AND seq BETWEEN {placeholder} AND {placeholder} ORDER BY seq"
)
"""SQL: the log rows of a `LogRange`. `{placeholder}` is that of the database for a value."""


class LogRow(NamedTuple):
    """A row of table `log`: one push."""

    seq: int
    """Its dense number in the shard's log."""
    arrival: int
    """The gateway's own HLC timestamp of the push's commit. In the feed, each row of the push has an arrival of its
    own; this is the highest."""
    body: bytes | None
    """The encoded deltas; None if they were trimmed (deleted after their flush)."""


class LogRange(NamedTuple):
    """A range of one shard's log. The fields are the parameters of the query, in this order."""

    gateway: str
    """The gateway's id."""
    shard: str
    """The shard's name; `main` without sharding."""
    epoch: int
    """Identifies the store's copy of the gateway's data; a rebuild of the store begins a greater one."""
    from_seq: int
    """The first log row."""
    to_seq: int
    """The last log row, which belongs to the range."""


class LoggedPush(NamedTuple):
    """A push in the log, decoded."""

    seq: int
    """Its number in the log."""
    arrival: int
    """As in `LogRow`."""
    deltas: list[RowDelta]
    bytes: int
    """Stored bytes of the encoded deltas."""


def read_log(source: LogSource, log_range: LogRange) -> Iterator[LoggedPush]:
    """Yield the pushes of a range, in order; pushes whose bodies were trimmed are skipped.

    Args:
        source: the address of the log, from `PipelineStore.log_source`.
        log_range: the shard and the log rows to read.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    for seq, arrival, body in log_rows(source, log_range):
        if body is not None:
            yield LoggedPush(seq, arrival, decode_body(bytes(body)), len(body))


def log_rows(source: LogSource, log_range: LogRange) -> Iterator[LogRow]:
    """Return the log rows of a range, in order.

    Args:
        source: the address of the log, from `PipelineStore.log_source`.
        log_range: the shard and the log rows to read.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    return map(
        LogRow._make, _sqlite(source, log_range) if source.url.startswith(_SQLITE) else _postgres(source, log_range)
    )


def _sqlite(source: LogSource, log_range: LogRange) -> Iterator[tuple[Any, ...]]:
    """Yield the log rows of a range from a SQLite store's `log.db`, opened read-only."""
    path = source.url.removeprefix(_SQLITE)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=10)) as connection:
            yield from connection.execute(_ROWS.format(table=source.table, placeholder="?"), log_range)
    except sqlite3.Error as error:
        raise StagingUnavailableError(f"the log in {path} cannot be read: {error}") from error


def _postgres(source: LogSource, log_range: LogRange) -> Iterable[tuple[Any, ...]]:
    """Return the log rows of a range from Postgres; raises StagingUnavailableError for any other kind of address."""
    import psycopg

    from lakesync.wire.postgres import BoundedConnection, parameters

    if not source.url.startswith(_POSTGRES):
        raise StagingUnavailableError(f"the log at {without_password(source.url)!r} is neither SQLite's nor Postgres'")
    url = source.url.removeprefix("jdbc:")
    try:
        with BoundedConnection.connect(**{**parameters(url), **source.properties}) as connection:
            return connection.execute(_ROWS.format(table=source.table, placeholder="%s"), log_range).fetchall()
    except psycopg.Error as error:
        raise StagingUnavailableError(
            f"the log at {without_password(url)} cannot be read: {str(error).strip()}"
        ) from error
