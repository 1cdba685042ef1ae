"""Reads every push of a gateway from the lake's table `deltas`, for `lakesync staging rebuild`.

A gateway is an app's stream of pushes. A push is what a client sent in one request: deltas (changes of rows). All its
deltas have the same *arrival*, the gateway's timestamp of receipt. The lake's table `gateways` has the configuration of
each gateway: schemas, rules and connectors. The pipeline writes it when it flushes deltas to the lake, and when it
makes a checkpoint (files with all rows, for new clients).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.analysis.catalogue import LakeReader, may_have_catalogue
from lakesync.config import Config
from lakesync.engine.rebuild import LakePush
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.types import StoredConnector
from lakesync.staging.records import GatewayConfig
from lakesync.wire.history import delta_of_row

CONFIG_PROPERTY = "lakesync.config."
"""Prefix of properties of the table `gateways`; a gateway id follows. The value is its configuration as JSON.

Only lakes from before 23 November 2026 have such properties; later ones have a row for each gateway."""

_DELTAS_AT_ONCE = 200_000
"""Deltas that are sorted in memory at the same time, about."""
_MAX_ARRIVAL = (1 << 63) - 1
"""No arrival is greater: they are integers of 64 bits with a sign."""
_POSITION = ("arrival", "shard", "epoch", "seq")
"""The columns that identify a push: its arrival, and where the staging store's log had it. That is the shard (a store
with some of the tables), the epoch (which copy of that store) and the number in its log."""
_COLUMNS = (*_POSITION, "ordinal", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns")


class LakeHistory:
    """The lake as `lakesync.engine.rebuild` reads it, over an Iceberg catalogue. Use it as a context manager."""

    def __init__(self, config: Config) -> None:
        """Open the lake of a configuration, for reading.

        Raises:
            LakeUnavailableError: there is no lake at the configured location.
        """
        with ExitStack() as opening:  # closes the lake if it cannot be read
            self._lake = opening.enter_context(LakeReader(config))
            deltas = self._lake.deltas if may_have_catalogue(config) else None
            if deltas is None:
                lake = config.lake
                raise LakeUnavailableError(
                    f"the catalogue at {lake.catalog_uri.rpartition('@')[2]} has no table "
                    f"{lake.system_namespace}.deltas: set lake.catalog_uri to the lake's catalogue, or start with an "
                    "empty store"
                )
            self._deltas = deltas
            self._open = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def gateways(self) -> list[str]:
        """Return every gateway with deltas or a configuration."""
        return sorted({*self._delta_counts, *self._configs()})

    def config(self, gateway: str) -> GatewayConfig | None:
        """Return a gateway's schemas and rules, as the pipeline last wrote them; None if it never did."""
        text = self._configs().get(gateway)
        return msgspec.json.decode(text, type=GatewayConfig) if text else None

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors, as the pipeline last wrote them."""
        text = self._gateway_column("connectors").get(gateway)
        return msgspec.json.decode(text, type=list[StoredConnector]) if text else []

    def pushes(self, gateway: str) -> Iterator[LakePush]:
        """Yield every push in order of arrival. One day at a time is in memory; of a day with many deltas, a part."""
        for day, count in sorted(self._delta_counts.get(gateway, {}).items()):
            for first, last in self._arrival_ranges(gateway, day, count):
                rows = self._read(gateway, day, _COLUMNS, first, last)
                ordered = rows.sort_by([(column, "ascending") for column in (*_POSITION, "ordinal")])
                for _, push in groupby(_dicts(ordered), itemgetter(*_POSITION)):
                    yield _push(list(push))

    @cached_property
    def _delta_counts(self) -> dict[str, dict[date, int]]:
        """The number of deltas by gateway and day of arrival. Reading them scans two columns of the whole history."""
        counts: dict[str, dict[date, int]] = {}
        for batch in self._deltas.scan(selected_fields=("gateway", "day")).to_arrow_batch_reader():
            for counted in pa.table(batch).group_by(["gateway", "day"]).aggregate([([], "count_all")]).to_pylist():
                days = counts.setdefault(counted["gateway"], {})
                days[counted["day"]] = days.get(counted["day"], 0) + counted["count_all"]
        return counts

    def _arrival_ranges(self, gateway: str, day: date, count: int) -> Iterator[tuple[int, int]]:
        """Yield inclusive ranges of arrivals, each with about as many deltas as may be in memory.

        All deltas of a push have its arrival, so no range ends inside a push.

        Args:
            gateway: the gateway.
            day: a day of arrival.
            count: the number of the gateway's deltas of this day.
        """
        if count <= _DELTAS_AT_ONCE:
            yield 0, _MAX_ARRIVAL
            return
        arrivals = pc.unique(self._read(gateway, day, ("arrival",))["arrival"]).sort()
        ranges = math.ceil(count / _DELTAS_AT_ONCE)
        size = math.ceil(len(arrivals) / ranges)
        for start in range(0, len(arrivals), size):
            part = arrivals.slice(start, size)
            yield part[0].as_py(), part[-1].as_py()

    def _read(
        self, gateway: str, day: date, columns: tuple[str, ...], first: int = 0, last: int = _MAX_ARRIVAL
    ) -> pa.Table:
        """Return columns of a gateway's deltas of one day, from the first to the last arrival, both included."""
        # safe: a gateway id cannot contain quotes
        condition = f"gateway = '{gateway}' AND day = '{day.isoformat()}' AND arrival >= {first} AND arrival <= {last}"
        return self._deltas.scan(row_filter=condition, selected_fields=columns).to_arrow()

    def _configs(self) -> dict[str, str]:
        """Return the configuration of each gateway as JSON, by gateway."""
        table = self._lake.gateways
        if table is None:
            return {}
        properties = {name: value for name, value in table.properties.items() if name.startswith(CONFIG_PROPERTY)}
        old_configs = {name.removeprefix(CONFIG_PROPERTY): value for name, value in properties.items()}
        return old_configs | self._gateway_column("config")

    def _gateway_column(self, column: str) -> dict[str, str]:
        """Return the values of a column of the table `gateways`, by gateway; empty if the table lacks the column."""
        table = self._lake.gateways
        if table is None or column not in table.schema().column_names:
            return {}
        rows = table.scan(selected_fields=("gateway", column)).to_arrow().to_pylist()
        return {row["gateway"]: row[column] for row in rows if row[column] is not None}


def _dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow table as dicts, without converting all of them at once."""
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _push(rows: list[dict[str, Any]]) -> LakePush:
    """Return a push from its rows in `deltas`."""
    return LakePush(rows[0]["arrival"], rows[0]["client_id"], [delta_of_row(row) for row in rows])
