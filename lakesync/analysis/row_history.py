"""Every delta of one row, from the lake and staging's log, with its provenance, for `lakesync row history`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from lakesync.analysis.catalogue import LakeReader, may_have_catalogue
from lakesync.analysis.provenance import ArrivedDelta, DeltaProvenance, provenance
from lakesync.analysis.scans import all_of, condition
from lakesync.analysis.unflushed import unflushed_deltas
from lakesync.model.errors import NotFoundError
from lakesync.model.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from lakesync.config import Config

_COLUMNS = (
    *("gateway", "shard", "epoch", "seq", "ordinal", "arrival"),
    *("table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns"),
)
_Position = tuple[str, str, int, int, int]
"""Gateway, shard, epoch, sequence number and ordinal of a delta."""


def row_history(config: Config, table: str, row: str, gateway: str | None = None) -> list[DeltaProvenance]:
    """Return each delta of a row and what became of it, gateway by gateway, in order of arrival.

    Args:
        config: names the lake and the store.
        table: the row's table.
        row: the row's id.
        gateway: restricts the search to one gateway; None for every gateway that has such a row.

    Raises:
        NotFoundError: there is no such row, or no such table.
        LakeUnavailableError: the row is not in the log, and there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    found: dict[_Position, ArrivedDelta] = {}
    tables = set()
    for each in unflushed_deltas(config):
        log, delta = each.range, each.delta
        tables.add(delta.table)
        if delta.key == (table, row) and gateway in (None, log.gateway):
            position = (log.gateway, log.shard, log.epoch, each.seq, each.ordinal)
            found[position] = ArrivedDelta(log.gateway, each.arrival, False, delta)
    if may_have_catalogue(config) or not found:  # before the first flush, every delta is in the log
        with LakeReader(config) as lake:
            if lake.deltas is not None:
                found |= _flushed(lake.deltas, table, row, gateway)
            tables |= {name for _, name in lake.state_tables.values()}
    if not found:
        if table not in tables:
            raise NotFoundError(f"there is no table {table!r} in the lake; known tables: {', '.join(sorted(tables))}")
        where = f" in gateway {gateway!r}" if gateway else ""
        raise NotFoundError(f"table {table!r} never had a row {row!r}{where}; check the row id")
    ordered = [found[each] for each in sorted(found, key=lambda each: (each[0], found[each].arrival, *each[1:]))]
    gateways = dict.fromkeys(each.gateway for each in ordered)
    return [entry for name in gateways for entry in provenance([each for each in ordered if each.gateway == name])]


def _flushed(deltas: Table, table: str, row: str, gateway: str | None) -> dict[_Position, ArrivedDelta]:
    """Return the row's deltas in the lake."""
    row_filter = all_of(condition("table_name", "=", table), condition("row_id", "=", row))
    if gateway is not None:
        row_filter = all_of(row_filter, condition("gateway", "=", gateway))
    scan = deltas.scan(row_filter=row_filter, selected_fields=_COLUMNS)
    return {
        (each["gateway"], each["shard"], each["epoch"], each["seq"], each["ordinal"]): ArrivedDelta(
            each["gateway"], each["arrival"], True, _delta(each)
        )
        for batch in scan.to_arrow_batch_reader()
        for each in _rows(batch)
    }


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    yield from batch.to_pylist()


def _delta(row: dict[str, Any]) -> RowDelta:
    columns = tuple(ColumnValue(name, Raw(text.encode())) for name, text in sorted(row["columns"] or ()))
    return RowDelta(row["op"], row["table_name"], row["row_id"], row["client_id"], columns, row["hlc"], row["delta_id"])
