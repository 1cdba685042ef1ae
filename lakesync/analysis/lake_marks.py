"""Reads the lake's marks by pyiceberg and compares them with staging's: what every part of the pipeline lacks."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import requests
from pyiceberg.exceptions import NoSuchTableError, RESTError
from sqlalchemy.exc import SQLAlchemyError

from lakesync.analysis.catalogue import NAMESPACE_PROPERTY, LakeReader, may_have_catalogue, merge_marks
from lakesync.analysis.column_bounds import column_bounds
from lakesync.analysis.marks import LakeMarks, Piece, lags, least_mark, positions
from lakesync.analysis.scans import all_of, condition
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.hlc import wall_of
from lakesync.staging.shards import shard_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from lakesync.analysis.marks import Follower, Lag, StateTable, Timed
    from lakesync.config import Config
    from lakesync.staging.records import Backlog


_UNREADABLE = (SQLAlchemyError, RESTError, NoSuchTableError, requests.ConnectionError, OSError)


class MarkReader:
    """Reads the lake of a configuration again and again, and the files of a history that has not changed once."""

    def __init__(self, config: Config) -> None:
        """Args: config: names the lake, its namespaces and shards."""
        self._config = config
        self._shards = shard_map(config.shard_config)
        self._read: tuple[tuple[int | None, int], tuple[Piece, ...]] | None = None
        self._rejected_at: int | None = None
        self.rejected: Mapping[tuple[str, str], int] = {}
        """(gateway, state table) → values that do not fit their columns, as the last reading found them."""

    def lags(
        self,
        backlog: Sequence[Backlog],
        tables: Sequence[StateTable],
        followers: Sequence[Follower],
        timed: Sequence[Timed] = (),
        now_ms: int = 0,
    ) -> list[Lag]:
        """Return every part that is behind the one upstream.

        Args:
            backlog: staging's. Read it before the lake: a flush in between then shows as done.
            tables: those that every flush merges.
            followers: destinations, with their marks.
            timed: polls, flows and tiers.
            now_ms: server wall time.

        Raises:
            LakeUnavailableError: the catalogue, or one of the files that it names, cannot be read.
        """
        config = self._config
        if not may_have_catalogue(config):
            return lags(backlog, (), (), timed, now_ms)
        try:
            with LakeReader(config) as lake:
                states = {called: lake.state_table(called) for called in lake.state_tables}
                marks = {called: merge_marks(table) for called, table in states.items() if table is not None}
                moved = frozenset(_moved(lake, backlog))
                found = positions(
                    backlog, LakeMarks(marks, moved=moved), tables, followers, config.namespaces, self._shards
                )
                pieces = self._pieces(lake.deltas, least_mark(found))
                self._count_rejected(lake)
        except _UNREADABLE as error:
            raise LakeUnavailableError(f"the lake's marks cannot be read: {error}") from error
        return lags(backlog, found, pieces, timed, now_ms)

    def _count_rejected(self, lake: LakeReader) -> None:
        table = lake.rejected
        snapshot = table.current_snapshot() if table is not None else None
        if table is None or snapshot is None or snapshot.snapshot_id == self._rejected_at:
            return
        rows = table.scan(selected_fields=("gateway", "table_name")).to_arrow()
        keys = zip(rows["gateway"].to_pylist(), rows["table_name"].to_pylist(), strict=True)
        self._rejected_at, self.rejected = snapshot.snapshot_id, Counter(keys)

    def _pieces(self, deltas: Table | None, low: int) -> tuple[Piece, ...]:
        snapshot = deltas.current_snapshot() if deltas is not None else None
        if deltas is None or snapshot is None:
            return ()
        key = snapshot.snapshot_id, low
        if self._read is None or self._read[0] != key:
            self._read = key, tuple(pieces_beyond(deltas, low))
        return self._read[1]


def snapshots(config: Config, tables: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
    """Return the newest snapshot of tables; None of those that the lake does not have.

    Args:
        config: names the lake.
        tables: namespaces and names.

    Raises:
        LakeUnavailableError: the catalogue, or a table of it, cannot be read.
    """
    if not may_have_catalogue(config):
        return dict.fromkeys(tables)
    try:
        with LakeReader(config) as lake:
            return {table: lake.current_snapshot_of(*table) for table in tables}
    except _UNREADABLE as error:
        raise LakeUnavailableError(f"the lake's tables cannot be read: {error}") from error


def pieces_beyond(deltas: Table, low: int) -> Iterator[Piece]:
    """Yield the files of the history with anything that arrived after `low`.

    A file without the bounds of one gateway and shard is left out. A flush writes none, and upkeep keeps gateways
    apart.
    """
    day = datetime.fromtimestamp(wall_of(low) / 1000, UTC).date().isoformat()
    for task in deltas.scan(all_of(condition("arrival", ">", low), condition("day", ">=", day))).plan_files():
        piece = _piece(deltas, task.file)
        if piece is not None:
            yield piece


def _piece(deltas: Table, file: DataFile) -> Piece | None:
    gateways, shards, tables, arrivals = (
        column_bounds(deltas, file, name) for name in ("gateway", "shard", "table_name", "arrival")
    )
    first, last = arrivals
    if gateways[0] != gateways[1] or shards[0] != shards[1] or not isinstance(first, int) or not isinstance(last, int):
        return None
    low, high = (str(bound) for bound in tables)
    return Piece(str(gateways[0]), str(shards[0]), first, last, file.record_count, low, high)


def _moved(lake: LakeReader, backlog: Sequence[Backlog]) -> Iterator[str]:
    """Gateways whose rows are in another namespace than the configuration says."""
    table = lake.gateways
    kept = table.properties if table is not None else {}
    for gateway in {each.gateway for each in backlog}:
        where = kept.get(f"{NAMESPACE_PROPERTY}{gateway}")
        if where is not None and where != lake.namespaces.of(gateway):
            yield gateway
