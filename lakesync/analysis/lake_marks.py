"""Reads the marks of the lake's tables by pyiceberg, and returns which parts of the pipeline are behind.

A gateway is one app's stream of changes of rows (deltas). A mark says how far a part of the pipeline, such as a state
table (the current rows of a synced table), is with them: the arrival (the gateway's timestamp of receipt) up to which
it has all of them. `lakesync.analysis.lags` compares the marks. Staging (the gateways' store) is upstream of the
history, the lake's table `deltas`, which flushes extend; all other parts, such as destinations (databases that get all
changes), follow the history. Sensors and freshness checks (`sensors`) use `MarkReader`; the schedules of maintenance
and audits (`lakesync_dagster.jobs`) call `snapshots`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import requests
from pyiceberg.exceptions import NoSuchTableError, RESTError
from sqlalchemy.exc import SQLAlchemyError

from lakesync.analysis.catalogue import NAMESPACE_PROPERTY, LakeReader, column_bounds, may_have_catalogue, merge_marks
from lakesync.analysis.lags import HistoryFile, LakeMarks, collect_progress, compare_marks, lowest_mark
from lakesync.analysis.scans import all_of, condition
from lakesync.model.errors import LakeUnavailableError
from lakesync.staging.ledger import day_of
from lakesync.staging.shards import shard_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from lakesync.analysis.lags import FollowerPosition, Lag, StateTable, Timed
    from lakesync.config import Config
    from lakesync.staging.records import Backlog

_UNREADABLE = (SQLAlchemyError, RESTError, NoSuchTableError, requests.ConnectionError, OSError)
"""Errors of pyiceberg for a catalogue or a file that cannot be read."""


class MarkReader:
    """Reads the marks of one lake repeatedly. Caches what it read of an unchanged history."""

    def __init__(self, config: Config) -> None:
        """Create the reader; nothing is opened yet.

        Args:
            config: names the lake, its namespaces, and the shards (staging stores, each for some of the tables).
        """
        self._config = config
        self._shards = shard_map(config.shard_config)
        self._cached_files: tuple[tuple[int, int], tuple[HistoryFile, ...]] | None = None
        """A snapshot of the history and an arrival; and the files of that snapshot with later deltas. None before the
        first read."""
        self._rejected_snapshot: int | None = None
        """The snapshot of the table `rejected` from which `rejected` was counted."""
        self.rejected: Mapping[tuple[str, str], int] = {}
        """(gateway, state table) → number of values that do not fit their columns, when `lags` was called last."""

    def lags(
        self,
        backlog: Sequence[Backlog],
        tables: Sequence[StateTable],
        followers: Sequence[FollowerPosition],
        timed: Sequence[Timed] = (),
        now_ms: int = 0,
    ) -> list[Lag]:
        """Return every part that is behind the one upstream, and update `rejected`.

        Args:
            backlog: staging's backlog, with the number of unflushed deltas of each gateway in each shard. Read it
                before calling this, so that a flush in between is not counted twice.
            tables: tables that every flush merges.
            followers: destinations with their marks.
            timed: polls, flows and tiers, which are due at certain times and not by marks of the lake.
            now_ms: server wall time in milliseconds since 1970.

        Raises:
            LakeUnavailableError: the catalogue or a file of it cannot be read.
        """
        config = self._config
        if not may_have_catalogue(config):
            return compare_marks(backlog, (), (), timed, now_ms)
        try:
            with LakeReader(config) as lake:
                states = {name: lake.state_table(name) for name in lake.state_tables}
                marks = {name: merge_marks(table.properties) for name, table in states.items() if table is not None}
                lake_marks = LakeMarks(marks, misplaced=frozenset(_misplaced_gateways(lake, backlog)))
                progress = collect_progress(backlog, lake_marks, tables, followers, config.namespaces, self._shards)
                files = self._files(lake.deltas, lowest_mark(progress))
                self._count_rejected(lake)
        except _UNREADABLE as error:
            raise LakeUnavailableError(f"the lake's marks cannot be read: {error}") from error
        return compare_marks(backlog, progress, files, timed, now_ms)

    def _count_rejected(self, lake: LakeReader) -> None:
        """Update `rejected`, if its table has changed."""
        table = lake.rejected
        snapshot = table.current_snapshot() if table is not None else None
        if table is None or snapshot is None or snapshot.snapshot_id == self._rejected_snapshot:
            return
        rows = table.scan(selected_fields=("gateway", "table_name")).to_arrow()
        keys = zip(rows["gateway"].to_pylist(), rows["table_name"].to_pylist(), strict=True)
        self._rejected_snapshot, self.rejected = snapshot.snapshot_id, Counter(keys)

    def _files(self, deltas: Table | None, arrival: int) -> tuple[HistoryFile, ...]:
        """Return the files of the history with deltas that arrived after `arrival`."""
        snapshot = deltas.current_snapshot() if deltas is not None else None
        if deltas is None or snapshot is None:
            return ()
        key = snapshot.snapshot_id, arrival
        if self._cached_files is None or self._cached_files[0] != key:
            self._cached_files = key, tuple(_history_files_after(deltas, arrival))
        return self._cached_files[1]


def snapshots(config: Config, tables: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
    """Return the current snapshot id of each table; None for a table that does not exist.

    Args:
        config: names the lake.
        tables: namespaces and names of tables.

    Raises:
        LakeUnavailableError: the catalogue or a table of it cannot be read.
    """
    if not may_have_catalogue(config):
        return dict.fromkeys(tables)
    try:
        with LakeReader(config) as lake:
            return {table: lake.current_snapshot_of(*table) for table in tables}
    except _UNREADABLE as error:
        raise LakeUnavailableError(f"the lake's tables cannot be read: {error}") from error


def _history_files_after(deltas: Table, arrival: int) -> Iterator[HistoryFile]:
    """Yield the files of the history with deltas that arrived after `arrival`.

    Skips files with deltas of more than one gateway or shard. Neither flushes nor compactions write such files.

    Args:
        deltas: the history.
        arrival: an arrival.
    """
    row_filter = all_of(condition("arrival", ">", arrival), condition("day", ">=", day_of(arrival)))
    for task in deltas.scan(row_filter).plan_files():
        file = _history_file(deltas, task.file)
        if file is not None:
            yield file


def _history_file(deltas: Table, file: DataFile) -> HistoryFile | None:
    """Return a data file described by its column bounds; None if it has deltas of several gateways or shards."""
    gateways, shards, tables, arrivals = (
        column_bounds(deltas, file, name) for name in ("gateway", "shard", "table_name", "arrival")
    )
    first, last = arrivals
    if gateways[0] != gateways[1] or shards[0] != shards[1] or not isinstance(first, int) or not isinstance(last, int):
        return None
    low, high = (str(bound) for bound in tables)
    return HistoryFile(str(gateways[0]), str(shards[0]), first, last, file.record_count, low, high)


def _misplaced_gateways(lake: LakeReader, backlog: Sequence[Backlog]) -> Iterator[str]:
    """Yield gateways whose rows are in another namespace than the configured one."""
    table = lake.gateways
    properties = table.properties if table is not None else {}
    for gateway in {each.gateway for each in backlog}:
        namespace = properties.get(f"{NAMESPACE_PROPERTY}{gateway}")
        if namespace is not None and namespace != lake.namespaces.of(gateway):
            yield gateway
