"""Every delta of one row, from the lake and from what is not flushed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from lakesync.analysis.catalogue import Lake, has_catalogue
from lakesync.analysis.fates import Arrived, DeltaFate, fates
from lakesync.analysis.scans import both, holds
from lakesync.analysis.unflushed import waiting_deltas
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
_Place = tuple[str, str, int, int, int]


def row_history(config: Config, table: str, row: str, gateway: str | None = None) -> list[DeltaFate]:
    """Each delta of a row with what became of it, gateway by gateway, in order of arrival.

    Args:
        config: where the lake and the store are.
        table: the row's table.
        row: its id.
        gateway: only there; None: in every gateway that has such a row.

    Raises:
        NotFoundError: there is no such row, or no such table.
        LakeUnavailableError: it is not in the log, and there is no catalogue where the configuration says.
        StagingUnavailableError: what is not flushed yet cannot be read.
    """
    found: dict[_Place, Arrived] = {}
    names = set()
    for waiting in waiting_deltas(config):
        place, delta = waiting.stretch, waiting.delta
        names.add(delta.table)
        if delta.key == (table, row) and gateway in (None, place.gateway):
            key = (place.gateway, place.shard, place.epoch, waiting.seq, waiting.ordinal)
            found[key] = Arrived(place.gateway, waiting.arrival, False, delta)
    known = names
    if has_catalogue(config) or not found:  # where nothing was flushed yet, all of it waits
        with Lake(config) as lake:
            if lake.deltas is not None:
                found |= _flushed(lake.deltas, table, row, gateway)
            known = {*names, *(name for _, name in lake.states.values())}
    if not found:
        if table not in known:
            raise NotFoundError(f"there is no table {table!r} in the lake; there are {', '.join(sorted(known))}")
        where = f" in gateway {gateway!r}" if gateway else ""
        raise NotFoundError(f"the table {table!r} never had a row {row!r}{where}: look at its id")
    ordered = [found[place] for place in sorted(found, key=lambda place: (place[0], found[place].arrival, *place[1:]))]
    gateways = dict.fromkeys(each.gateway for each in ordered)
    return [fate for name in gateways for fate in fates([each for each in ordered if each.gateway == name])]


def _flushed(deltas: Table, table: str, row: str, gateway: str | None) -> dict[_Place, Arrived]:
    wanted = both(holds("table_name", "=", table), holds("row_id", "=", row))
    if gateway is not None:
        wanted = both(wanted, holds("gateway", "=", gateway))
    scan = deltas.scan(row_filter=wanted, selected_fields=_COLUMNS)
    return {
        (each["gateway"], each["shard"], each["epoch"], each["seq"], each["ordinal"]): Arrived(
            each["gateway"], each["arrival"], True, _delta(each)
        )
        for batch in scan.to_arrow_batch_reader()
        for each in _dicts(batch)
    }


def _dicts(batch: Any) -> Iterator[dict[str, Any]]:
    yield from batch.to_pylist()


def _delta(each: dict[str, Any]) -> RowDelta:
    cells = tuple(ColumnValue(name, Raw(text.encode())) for name, text in sorted(each["columns"] or ()))
    return RowDelta(
        each["op"], each["table_name"], each["row_id"], each["client_id"], cells, each["hlc"], each["delta_id"]
    )
