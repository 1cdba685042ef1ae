"""Deltas as flat rows, with the names that the lake's own table `deltas` has."""

from __future__ import annotations

from typing import TypeVar

from lakesync.adapters.base import StoredDelta
from lakesync.model.types import ColumnValue, Op, RowDelta

C = TypeVar("C")

COLUMNS = ("gateway", "arrival", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns")

FlatDelta = tuple[str, int, str, str, Op, str, int, str, C]
"""A value for each of `COLUMNS`."""


def flat(stored: StoredDelta, columns: C) -> FlatDelta[C]:
    """A delta as a row, its columns as the backend spells them."""
    delta = stored.delta
    return (
        stored.gateway,
        stored.arrival,
        delta.table,
        delta.row_id,
        delta.op,
        delta.client_id,
        delta.hlc,
        delta.delta_id,
        columns,
    )


def unflat(row: FlatDelta[tuple[ColumnValue, ...]]) -> StoredDelta:
    """The delta that a row, its columns read, was made of."""
    gateway, arrival, table, row_id, op, client_id, hlc, delta_id, columns = row
    return StoredDelta(gateway, arrival, RowDelta(op, table, row_id, client_id, columns, hlc, delta_id))
