"""Pulls from named sources: adapters whose rows clients get through the gateway's rules, beside its own feed.

Rows come whole, each at its latest place, as DELETE and INSERT, since the gateway does not know what of them a client
has. Rules are evaluated row by row. A row that a client may not see is sent as DELETE if its rules ever showed it that
row, as the source's own history tells, and not at all otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import DeltaQuery, StoredDelta, position_of
from lakesync.feed import render
from lakesync.model.merge import RowState
from lakesync.model.position import Position
from lakesync.model.types import RowDelta, RowKey
from lakesync.rules.evaluation import matches
from lakesync.staging.records import ClientRecord, StoredRow
from lakesync.staging.source_records import Sight

_CHUNK = 1000
_CHUNKS_A_PULL = 20
"""How far one pull looks for something that its client may see."""


class SourcePage(NamedTuple):
    """Rows of a source."""

    deltas: list[RowDelta]
    end: Position | None
    """Everything up to here is in this page or an earlier one."""
    more: bool

    @property
    def tables(self) -> frozenset[str]:
        """Of the rows in it."""
        return frozenset(delta.table for delta in self.deltas)


def read_source(adapter: DatabaseAdapter, after: Position | None, sights: Sequence[Sight], limit: int) -> SourcePage:
    """The page after a place, rows whole, at least `limit` deltas where there are so many.

    Args:
        adapter: the source.
        after: None for the beginning.
        sights: what the client may see, last, and what it might see before.
        limit: deltas.

    Raises:
        AdapterError: the source cannot be read.
    """
    deltas: list[RowDelta] = []
    at, more, chunks = after, True, 0
    while more and len(deltas) < limit and chunks < _CHUNKS_A_PULL:
        chunk = adapter.query_deltas_since(DeltaQuery(after=at, limit=_CHUNK))
        chunks += 1
        more = chunk.end is not None
        if not chunk.deltas:
            break
        last = position_of(chunk.deltas[-1], "arrival")
        for latest, history in _rows(adapter, chunk.deltas, last):
            if len(deltas) >= limit:
                return SourcePage(deltas, at, more=True)
            deltas += _told(history, sights)
            at = latest
        at = last
    return SourcePage(deltas, at, more)


class _History(NamedTuple):
    """A row and every delta of it, in order of arrival."""

    key: RowKey
    deltas: list[StoredDelta]


def _rows(adapter: DatabaseAdapter, chunk: Iterable[StoredDelta], last: Position) -> list[tuple[Position, _History]]:
    """The rows of a chunk, in order of their latest delta; one that comes again behind `last` waits for that."""
    found = []
    for table, group in groupby(sorted({stored.delta.key for stored in chunk}), key=lambda key: key[0]):
        histories: dict[str, list[StoredDelta]] = {}
        query = DeltaQuery(tables=(table,), rows=tuple(row_id for _, row_id in group))
        for stored in _all(adapter, query):
            histories.setdefault(stored.delta.row_id, []).append(stored)
        for row_id, deltas in histories.items():
            latest = position_of(deltas[-1], "arrival")
            if latest <= last:
                found.append((latest, _History((table, row_id), deltas)))
    return sorted(found, key=lambda each: each[0])


def _all(adapter: DatabaseAdapter, query: DeltaQuery) -> Iterable[StoredDelta]:
    while True:
        page = adapter.query_deltas_since(query)
        yield from page.deltas
        if page.end is None:
            return
        query = msgspec.structs.replace(query, after=page.end)


def _told(history: _History, sights: Sequence[Sight]) -> list[RowDelta]:
    """What a client is sent of a row."""
    places = [position_of(stored, "arrival") for stored in history.deltas]
    state, shown = RowState(), False
    for place, replaced, stored in zip(places, [*places[1:], None], history.deltas, strict=True):
        state.merge(stored.delta)
        shown = shown or any(
            _fell_into(sight, place, replaced) and _shows(sight, history.key[0], state) for sight in sights
        )
    row = StoredRow(*history.key, arrival=0, state=state)
    if _shows(sights[-1], history.key[0], state):
        return [render.delete(row), *render.insert(row)]
    return [render.delete(row)] if shown else []


def _fell_into(sight: Sight, place: Position, replaced: Position | None) -> bool:
    """Whether a version of a row could be sent in the time of a sight."""
    if sight.last is None or place > sight.last:
        return False
    return replaced is None or sight.first is None or replaced > sight.first


def _shows(sight: Sight, table: str, state: RowState) -> bool:
    if not state.visible:
        return False
    values = {column: msgspec.json.decode(raw) for column, raw in state.values().items()}
    return matches(sight.rules, table, values, sight.claims)


def beside_sources(deltas: Sequence[RowDelta], record: ClientRecord) -> list[RowDelta]:
    """A page of the gateway's own feed for a client of sources: an INSERT of a row that it may have from one of them
    comes behind a DELETE that is no newer.
    """
    tables = {table for known in record.sources for table in known.tables}
    told: list[RowDelta] = []
    for delta in deltas:
        follows = told and told[-1].key == delta.key and told[-1].op == "DELETE"
        if delta.op == "INSERT" and delta.table in tables and not follows:
            told.append(_delete_before(delta))
        told.append(delta)
    return told


def _delete_before(delta: RowDelta) -> RowDelta:
    state = RowState()
    state.merge(delta)
    return render.delete(StoredRow(delta.table, delta.row_id, arrival=0, state=state))
