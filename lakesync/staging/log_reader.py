"""The staging log as the flush reads it: committed rows, where the store says that they stand (`log_source`)."""

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
    """A committed push as it is stored."""

    seq: int
    arrival: int
    body: bytes | None
    """None once it is trimmed."""


class Stretch(NamedTuple):
    """A part of one shard's log."""

    gateway: str
    shard: str
    epoch: int
    from_seq: int
    to_seq: int
    """Inclusive."""


class LoggedPush(NamedTuple):
    """A committed push."""

    seq: int
    arrival: int
    deltas: list[RowDelta]
    bytes: int
    """Stored bytes."""


def read_log(source: LogSource, stretch: Stretch) -> Iterator[LoggedPush]:
    """The pushes of a stretch, in order; one whose body was trimmed is left out.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    for seq, arrival, body in log_rows(source, stretch):
        if body is not None:
            yield LoggedPush(seq, arrival, decode_body(bytes(body)), len(body))


def log_rows(source: LogSource, stretch: Stretch) -> Iterator[LogRow]:
    """The log rows of a stretch, in order, read beside the store's owner.

    Raises:
        StagingUnavailableError: the log cannot be read.
    """
    return map(LogRow._make, _sqlite(source, stretch) if source.url.startswith(_SQLITE) else _postgres(source, stretch))


def _sqlite(source: LogSource, stretch: Stretch) -> Iterator[tuple[Any, ...]]:
    path = source.url.removeprefix(_SQLITE)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=10)) as connection:
            yield from connection.execute(_ROWS.format(table=source.table, mark="?"), stretch)
    except sqlite3.Error as error:
        raise StagingUnavailableError(f"the log in {path} cannot be read: {error}") from error


def _postgres(source: LogSource, stretch: Stretch) -> Iterable[tuple[Any, ...]]:
    import psycopg
    from psycopg.conninfo import make_conninfo

    if not source.url.startswith(_POSTGRES):
        raise StagingUnavailableError(f"the log at {source.url!r} is neither SQLite's nor Postgres'")
    url = source.url.removeprefix("jdbc:")
    try:
        credentials = make_conninfo(url, connect_timeout=10, **source.properties)
        with psycopg.connect(credentials) as connection:
            return connection.execute(_ROWS.format(table=source.table, mark="%s"), stretch).fetchall()
    except psycopg.Error as error:
        raise StagingUnavailableError(f"the log at {url} cannot be read: {str(error).strip()}") from error
