"""Reads a shard's log beside its owner: tasks of Spark and the embedded flush read batches with it.

`PipelineStore.log_source` returns the address; committed rows are read directly from SQLite or Postgres.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote

from lakesync.model.errors import StagingUnavailableError
from lakesync.model.types import RowDelta
from lakesync.staging.records import LogSource
from lakesync.wire.log import decode_body

_SQLITE = "jdbc:sqlite:"
_POSTGRES = "jdbc:postgresql://"
_ROWS = (
    "SELECT seq, arrival, body FROM {table} WHERE gateway = {mark} AND shard = {mark} AND epoch = {mark}"
    " AND seq BETWEEN {mark} AND {mark} ORDER BY seq"
)


class LogRow(NamedTuple):
    """A row of table `log`."""

    seq: int
    arrival: int
    body: bytes | None
    """None if it was trimmed."""


class LogRange(NamedTuple):
    """A range of one shard's log."""

    gateway: str
    shard: str
    epoch: int
    from_seq: int
    to_seq: int
    """Inclusive."""


class LoggedPush(NamedTuple):
    """A push in the log, decoded."""

    seq: int
    arrival: int
    deltas: list[RowDelta]
    bytes: int
    """Stored bytes."""


def read_log(source: LogSource, log_range: LogRange) -> Iterator[LoggedPush]:
    """Yield the pushes of a range, in order; pushes whose bodies were trimmed are skipped.

    Args:
        source: where the log is.
        log_range: which part.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    for seq, arrival, body in log_rows(source, log_range):
        if body is not None:
            yield LoggedPush(seq, arrival, decode_body(bytes(body)), len(body))


def log_rows(source: LogSource, log_range: LogRange) -> Iterator[LogRow]:
    """Return the log rows of a range, in order.

    Args:
        source: where the log is.
        log_range: which part.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    return map(
        LogRow._make, _sqlite(source, log_range) if source.url.startswith(_SQLITE) else _postgres(source, log_range)
    )


def _sqlite(source: LogSource, log_range: LogRange) -> Iterator[tuple[Any, ...]]:
    path = source.url.removeprefix(_SQLITE)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=10)) as connection:
            yield from connection.execute(_ROWS.format(table=source.table, mark="?"), log_range)
    except sqlite3.Error as error:
        raise StagingUnavailableError(f"the log in {path} cannot be read: {error}") from error


def _postgres(source: LogSource, log_range: LogRange) -> Iterable[tuple[Any, ...]]:
    import psycopg
    from psycopg.conninfo import make_conninfo

    if not source.url.startswith(_POSTGRES):
        raise StagingUnavailableError(f"the log at {source.url!r} is neither SQLite's nor Postgres'")
    url = source.url.removeprefix("jdbc:")
    try:
        credentials = make_conninfo(url, connect_timeout=10, **source.properties)
        with psycopg.connect(credentials) as connection:
            return connection.execute(_ROWS.format(table=source.table, mark="%s"), log_range).fetchall()
    except psycopg.Error as error:
        raise StagingUnavailableError(f"the log at {url} cannot be read: {str(error).strip()}") from error
