"""Reads every push of a gateway from the lake's `deltas`, in order of arrival, for `staging rebuild`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import SQLAlchemyError

from lakesync.analysis.catalogue import open_catalogue
from lakesync.config import Config
from lakesync.engine.rebuilding import LakePush
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.types import ColumnValue, RowDelta, StoredConnector
from lakesync.staging.records import GatewayConfig

CONFIG_PROPERTY = "lakesync.config."
"""Prefix of properties of the table `gateways`; a gateway id follows. The value is its configuration as JSON.

Only lakes from before 23 November 2026 have such properties; later ones have a row for each gateway."""

_DELTAS_AT_ONCE = 200_000
"""Deltas that are sorted in memory at the same time."""
_POSITION = ("arrival", "shard", "epoch", "seq")
_COLUMNS = (*_POSITION, "ordinal", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns")


class LakeHistory:
    """Implements `engine.rebuilding.History` over an Iceberg catalogue."""

    def __init__(self, config: Config) -> None:
        """Open the lake of a configuration.

        Raises:
            LakeUnavailableError: there is no lake at the configured location.
        """
        lake = config.lake
        self._catalogue = open_catalogue(config)
        self._system = lake.system_namespace
        try:
            self._deltas = self._catalogue.load_table((self._system, "deltas"))
        except (NoSuchTableError, SQLAlchemyError) as exc:
            raise LakeUnavailableError(
                f"the catalogue at {lake.catalog_uri.rpartition('@')[2]} has no table {self._system}.deltas: "
                "set lake.catalog_uri to the lake's catalogue, or start with an empty store"
            ) from exc

    def gateways(self) -> list[str]:
        """Return every gateway with deltas or a configuration."""
        return sorted({*self._days(), *self._configs()})

    def config(self, gateway: str) -> GatewayConfig | None:
        """Return a gateway's configuration at the newest checkpoint; None before the first checkpoint."""
        found = self._configs().get(gateway)
        return msgspec.json.decode(found, type=GatewayConfig) if found else None

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors at the newest flush."""
        found = self._gateway_column("connectors").get(gateway)
        return msgspec.json.decode(found, type=list[StoredConnector]) if found else []

    def pushes(self, gateway: str) -> Iterator[LakePush]:
        """Yield every push in order of arrival. One day at a time is in memory; of a busy day, one part."""
        for day, count in sorted(self._days().get(gateway, {}).items()):
            for low, high in self._parts(gateway, day, count):
                rows = self._read(gateway, day, _COLUMNS, low, high)
                ordered = rows.sort_by([(column, "ascending") for column in (*_POSITION, "ordinal")])
                for _, push in groupby(_dicts(ordered), itemgetter(*_POSITION)):
                    yield _push(list(push))

    def _days(self) -> dict[str, dict[date, int]]:
        """Return gateway → day → number of deltas."""
        found: dict[str, dict[date, int]] = {}
        for batch in self._deltas.scan(selected_fields=("gateway", "day")).to_arrow_batch_reader():
            for counted in pa.table(batch).group_by(["gateway", "day"]).aggregate([([], "count_all")]).to_pylist():
                days = found.setdefault(counted["gateway"], {})
                days[counted["day"]] = days.get(counted["day"], 0) + counted["count_all"]
        return found

    def _parts(self, gateway: str, day: date, count: int) -> Iterator[tuple[int, int]]:
        """Yield inclusive ranges of arrivals, each with about as many deltas as may be in memory."""
        if count <= _DELTAS_AT_ONCE:
            yield 0, (1 << 63) - 1
            return
        arrivals = pc.unique(self._read(gateway, day, ("arrival",))["arrival"]).sort()
        parts = -(-count // _DELTAS_AT_ONCE)
        size = -(-len(arrivals) // parts)
        for start in range(0, len(arrivals), size):
            part = arrivals.slice(start, size)
            yield part[0].as_py(), part[-1].as_py()

    def _read(
        self, gateway: str, day: date, columns: tuple[str, ...], low: int = 0, high: int = (1 << 63) - 1
    ) -> pa.Table:
        # safe: a gateway id cannot contain quotes
        wanted = f"gateway = '{gateway}' AND day = '{day.isoformat()}' AND arrival >= {low} AND arrival <= {high}"
        return self._deltas.scan(row_filter=wanted, selected_fields=columns).to_arrow()

    def _configs(self) -> dict[str, str]:
        table = self._gateways()
        if table is None:
            return {}
        properties = {name: value for name, value in table.properties.items() if name.startswith(CONFIG_PROPERTY)}
        found = {name.removeprefix(CONFIG_PROPERTY): value for name, value in properties.items()}
        return found | self._gateway_column("config")

    def _gateway_column(self, column: str) -> dict[str, str]:
        """Return gateway → value of a column of the table `gateways`; empty if the table lacks the column."""
        table = self._gateways()
        if table is None or column not in table.schema().column_names:
            return {}
        rows = table.scan(selected_fields=("gateway", column)).to_arrow().to_pylist()
        return {row["gateway"]: row[column] for row in rows if row[column] is not None}

    def _gateways(self) -> Table | None:
        try:
            return self._catalogue.load_table((self._system, "gateways"))
        except NoSuchTableError:
            return None


def _dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _push(rows: list[dict[str, Any]]) -> LakePush:
    return LakePush(rows[0]["arrival"], rows[0]["client_id"], [_delta(row) for row in rows])


def _delta(row: dict[str, Any]) -> RowDelta:
    columns = tuple(ColumnValue(name, Raw(text.encode())) for name, text in row["columns"] or ())
    return RowDelta(row["op"], row["table_name"], row["row_id"], row["client_id"], columns, row["hlc"], row["delta_id"])
