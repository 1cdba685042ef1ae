"""Reads a page of a *source*: an adapter from which clients pull, beside the gateway's own *feed* of current rows.

A *gateway* is one app's stream of changes. An *adapter* gives access to a database or object store with deltas:
INSERTs, UPDATEs and DELETEs of rows, in an order in which each has a *position*. `engine.sources` calls `read_source`
for a pull from a source. For a page of the feed, it calls `with_deletes`, as `engine.sharding` does for a gateway over
several stores. `engine.adapter_gateway` calls `read_all`.

A page is read through the gateway's sync rules, which are evaluated for each row. Each row is sent whole, as DELETE and
INSERT, because the gateway does not know what a client has of it. A row that the client may not see now is sent as
DELETE if an earlier version of it was shown to the client. That can be computed, because a source has all deltas of a
row. A version that an erasure emptied may have been shown to any client. An *access period* is the time in which the
client read the source under certain rules and claims, the contents of its token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import DeltaQuery, StoredDelta, position_of
from lakesync.feed import render
from lakesync.feed.pull import MAX_PAGE_BYTES
from lakesync.model.delta import delta_id
from lakesync.model.merge import RowState
from lakesync.model.types import Position, RowDelta, RowKey
from lakesync.rules.model import matches
from lakesync.staging.records import ClientRecord, StoredRow
from lakesync.staging.records.clients import AccessPeriod

_DELTAS_PER_READ = 1000
"""Deltas in one read of the adapter."""
_MAX_READS = 20
"""The most reads of one pull, so that a pull ends that finds no row that its client may see."""


class Source(NamedTuple):
    """An adapter, and which of its deltas clients pull."""

    adapter: DatabaseAdapter
    """An open adapter."""
    gateway: str | None
    """The gateway whose deltas are read; None for all deltas of the adapter."""
    until: Callable[[], int | None] = lambda: None
    """Returns the arrival (a gateway's timestamp of a commit) up to which the adapter has all deltas of the gateway.
    Deltas above it are not read yet, because a reader continues in order of arrival. None for no bound."""

    def newest_position(self) -> Position | None:
        """Return the position of the last delta that can be read now; None if there is no delta.

        Raises:
            AdapterError: the source cannot be read.
        """
        newest, until = self.adapter.newest_position(self.gateway), self.until()
        if newest is None or until is None or newest.value <= until:
            return newest
        return Position(until + 1, -1, "", "", "")  # before every delta with a higher arrival


class SourcePage(NamedTuple):
    """A page of a source."""

    deltas: list[RowDelta]
    """What the client is sent of the rows that the page reached, whole rows only."""
    end: Position | None
    """The position in the source at which the page ends; None if the source is empty."""
    has_more: bool
    """Whether the source may have more after it."""

    @property
    def tables(self) -> frozenset[str]:
        """The tables of the page's rows."""
        return frozenset(delta.table for delta in self.deltas)


def read_source(
    source: Source, after: Position | None, access_periods: Sequence[AccessPeriod], limit: int
) -> SourcePage:
    """Return the page after a position: whole rows, until the page has `limit` deltas or `MAX_PAGE_BYTES` of values.

    Args:
        source: the source, with an open adapter.
        after: the position in the source after which the page begins; None for the beginning.
        access_periods: the rules and claims by which the client was sent rows earlier, and, last, the current ones.
        limit: deltas at which the page ends; the last row may exceed it, and the bytes.

    Raises:
        AdapterError: the source cannot be read.
    """
    deltas: list[RowDelta] = []
    until = source.until()
    reached, has_more, reads, size = after, True, 0, 0
    while has_more and len(deltas) < limit and size < MAX_PAGE_BYTES and reads < _MAX_READS:
        query = DeltaQuery(after=reached, gateway=source.gateway, until=until, limit=_DELTAS_PER_READ)
        chunk = source.adapter.query_deltas_since(query)
        reads += 1
        has_more = chunk.end is not None
        if not chunk.deltas:
            break
        last = position_of(chunk.deltas[-1], "arrival")
        for latest, history in _rows(source, chunk.deltas, last):
            if len(deltas) >= limit or size >= MAX_PAGE_BYTES:
                return SourcePage(deltas, reached, has_more=True)
            of_row = _deltas_for(history, access_periods)
            deltas += of_row
            size += sum(len(cell.value) for delta in of_row for cell in delta.columns)
            reached = latest
        reached = last
    return SourcePage(deltas, reached, has_more)


def read_all(adapter: DatabaseAdapter, query: DeltaQuery) -> Iterator[StoredDelta]:
    """Yield the deltas of all pages of a query.

    Args:
        adapter: an open adapter.
        query: which deltas to read, in which order.

    Raises:
        AdapterError: the adapter cannot be read.
    """
    while True:
        page = adapter.query_deltas_since(query)
        yield from page.deltas
        if page.end is None:
            return
        query = msgspec.structs.replace(query, after=page.end)


def with_deletes(deltas: Sequence[RowDelta], record: ClientRecord) -> list[RowDelta]:
    """Put a DELETE before each INSERT of a row that the client may have from a source.

    The feed sends an INSERT if it has never sent the row to the client. But the client may have the row from a source,
    and then an INSERT would fail at a client that applies plain SQL.

    Args:
        deltas: a page of the gateway's own feed.
        record: the client's record, which has the tables of the rows that it was sent from sources.
    """
    tables = {table for known in record.sources for table in known.tables}
    result: list[RowDelta] = []
    for delta in deltas:
        has_delete = result and result[-1].key == delta.key and result[-1].op == "DELETE"
        if delta.op == "INSERT" and delta.table in tables and not has_delete:
            result.append(_delete_before(delta))
        result.append(delta)
    return result


class _History(NamedTuple):
    """All deltas of a row, in order of arrival, the gateway's timestamp of their commit."""

    key: RowKey
    deltas: list[StoredDelta]


def _rows(source: Source, chunk: Iterable[StoredDelta], last: Position) -> list[tuple[Position, _History]]:
    """Return the rows of a chunk in order of their latest delta, each with that delta's position.

    A row that has a delta after `last`, the end of the chunk, is skipped: it comes with the chunk of that delta.
    """
    rows = []
    for table, group in groupby(sorted({stored.delta.key for stored in chunk}), key=lambda key: key[0]):
        histories: dict[str, list[StoredDelta]] = {}
        query = DeltaQuery(gateway=source.gateway, tables=(table,), rows=tuple(row_id for _, row_id in group))
        for stored in read_all(source.adapter, query):
            histories.setdefault(stored.delta.row_id, []).append(stored)
        for row_id, deltas in histories.items():
            latest = position_of(deltas[-1], "arrival")
            if latest <= last:
                rows.append((latest, _History((table, row_id), deltas)))
    return sorted(rows, key=lambda each: each[0])


def _deltas_for(history: _History, access_periods: Sequence[AccessPeriod]) -> list[RowDelta]:
    """Return what a client is sent of a row: DELETE and INSERT, DELETE alone, or nothing.

    Args:
        history: the row's deltas.
        access_periods: the periods in which the client was sent rows, the current one last.
    """
    # each delta makes a version of the row, which the next delta replaces
    positions = [position_of(stored, "arrival") for stored in history.deltas]
    replaced_positions = [*positions[1:], None]
    state, was_shown = RowState(), False
    for position, replaced_at, stored in zip(positions, replaced_positions, history.deltas, strict=True):
        state.merge(stored.delta)
        was_shown = was_shown or any(
            _overlaps(period, position, replaced_at)
            and (
                _shows(period, history.key[0], state)
                or (_was_emptied(stored.delta) and period.rules.covers(history.key[0]))
            )
            for period in access_periods
        )
    row = StoredRow(history.key, arrival=0, state=state)
    if _shows(access_periods[-1], history.key[0], state):
        return [render.delete(row), *render.insert(row)]
    return [render.delete(row)] if was_shown else []


def _was_emptied(delta: RowDelta) -> bool:
    """Return whether an erasure has removed a delta's columns: its id is still the hash of what it contained."""
    if not delta.is_empty_update:
        return False
    key = {"table": delta.table, "row_id": delta.row_id}
    return delta.delta_id != delta_id(client_id=delta.client_id, hlc=delta.hlc, columns=(), **key)


def _overlaps(period: AccessPeriod, written_at: Position, replaced_at: Position | None) -> bool:
    """Return whether the client may have been sent a version of a row during a period.

    A period has two positions in the source: `first`, the newest one when it began, and `last`, up to which the client
    was sent rows.

    Args:
        period: the access period.
        written_at: position of the delta that made the version.
        replaced_at: position of the delta that replaced it; None for the current version.
    """
    if period.last is None or written_at > period.last:  # nothing was sent, or only earlier versions
        return False
    return replaced_at is None or period.first is None or replaced_at > period.first


def _shows(period: AccessPeriod, table: str, state: RowState) -> bool:
    """Return whether a period's rules show a version of a row to the client."""
    if not state.visible:
        return False
    values = {column: msgspec.json.decode(raw) for column, raw in state.values().items()}
    return matches(period.rules, table, values, period.claims)


def _delete_before(delta: RowDelta) -> RowDelta:
    """Return a DELETE with the stamp (hlc and client id) of an INSERT."""
    state = RowState()
    state.merge(delta)
    return render.delete(StoredRow(delta.key, arrival=0, state=state))
