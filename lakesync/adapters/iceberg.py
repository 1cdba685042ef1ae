"""The lake's `deltas` as a source: read by pyiceberg, file by file, with what the manifests tell of each.

The lake is written by the pipeline alone, by Spark, so this half of an adapter refuses to write.
Needs pyiceberg: `pip install 'lakesync[query]'`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from lakesync.adapters.arrow import arrow_schema, from_arrow
from lakesync.adapters.base import ArrowPage, DeltaBatch, DeltaPage, DeltaQuery, Held, Position
from lakesync.adapters.flat import COLUMNS
from lakesync.adapters.pieces import Piece, chosen, in_order, last_position, page_of, split_points
from lakesync.adapters.recent import Recent
from lakesync.adapters.selection import merged
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.model.merge import RowState
from lakesync.model.optional_imports import extra

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

_DELTAS = "deltas"
_GREATEST = (1 << 63) - 1


class IcebergDeltas:
    """`DatabaseAdapter`, for reading, over the lake's table of deltas."""

    def __init__(self, catalog: Catalog, namespace: str = "lakesync") -> None:
        """Args: namespace: the system's, in which `deltas` is."""
        self._catalog = catalog
        self._name = f"{namespace}.{_DELTAS}"
        self._recent = Recent()

    @classmethod
    def of(cls, uri: str) -> IcebergDeltas:
        """`iceberg://NAMESPACE?uri=CATALOGUE&warehouse=…`: what stands behind the `?` are pyiceberg's own properties.

        `catalogue=NAME` beside them is the catalogue's name; unless given, `lake`.

        Raises:
            ConfigurationError: pyiceberg is not installed, or cannot use the properties.
        """
        with extra("query", "Iceberg needs pyiceberg"):
            from pyiceberg.catalog import load_catalog
        parts = urlsplit(uri)
        try:
            properties = dict(parse_qsl(parts.query))
            name = properties.pop("catalogue", "lake")
            return cls(load_catalog(name, **properties), parts.netloc or "lakesync")
        except Exception as error:  # pyiceberg raises ValueError, NotImplementedError and its drivers' own
            raise ConfigurationError(f"the catalogue of {uri.partition('?')[0]!r} cannot be used: {error}") from error

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Refused.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"batch {batch.batch_id!r} cannot go to {self._name}: the lake is written by the pipeline, so flush by that"
        )

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page, from the files that may hold some of it."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """A page, from the files that may hold some of it."""
        table = self._table()
        return page_of(self._reaching(table, query), lambda task: self._read(table, task), query)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """The values that cut a query's deltas into ranges, by what the manifests tell of each file."""
        pieces = ((piece, piece.name.file.record_count) for piece in self._reaching(self._table(), query))
        return split_points(pieces, query, size)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row."""
        if not row_ids:
            return {}
        query, lake = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids)), self._table()
        found = (chosen(self._read(lake, piece.name), query) for piece in self._reaching(lake, query))
        return merged(stored.delta for some in found for stored in from_arrow(some))

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas, from the files that reach furthest."""
        table = self._table()
        pieces = list(self._reaching(table, DeltaQuery()))
        latest = max((piece.high for piece in pieces), default=0)
        last = [self._read(table, piece.name) for piece in pieces if piece.high == latest]
        return max((last_position(in_order(some, "arrival"), "arrival") for some in last if len(some)), default=None)

    def close(self) -> None:
        """Close the catalogue."""
        self._catalog.close()

    def _table(self) -> Table:
        """The table as it is now."""
        try:
            return self._catalog.load_table(self._name)
        except Exception as error:  # whatever the catalogue's driver raises
            raise AdapterError(f"the lake's table {self._name} cannot be read: {error}") from error

    def _reaching(self, table: Table, query: DeltaQuery) -> Iterator[Piece[FileScanTask]]:
        """The files that may hold something of what is asked for."""
        from pyiceberg import expressions as ice

        parts: list[tuple[Any, str, Any]] = [
            (ice.GreaterThanOrEqual, query.order, max(query.since, query.after.value if query.after else -1))
        ]
        if query.until is not None:
            parts.append((ice.LessThanOrEqual, query.order, query.until))
        if query.gateway is not None:
            parts.append((ice.EqualTo, "gateway", query.gateway))
        if query.tables:
            parts.append((ice.In, "table_name", query.tables))
        wanted: ice.BooleanExpression = ice.AlwaysTrue()
        for holds, column, value in parts:  # pyiceberg's classes are made by a metaclass that mypy does not follow
            wanted = ice.And(wanted, holds(column, value))
        field = table.schema().find_field(query.order)
        for task in table.scan(row_filter=wanted).plan_files():
            piece = Piece(task, *_span(task, field.field_id))
            if piece.reaches(query):
                yield piece

    def _read(self, table: Table, task: FileScanTask) -> pa.Table:
        key = f"{task.file.file_path} {len(task.delete_files)}"
        return self._recent.get(key, lambda _: _decoded(table, task))


def _span(task: FileScanTask, field: int) -> tuple[int, int]:
    """What a file holds of a column, where its statistics tell."""
    low, high = ((bounds or {}).get(field) for bounds in (task.file.lower_bounds, task.file.upper_bounds))
    if low is None or high is None:
        return 0, _GREATEST
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)


def _decoded(table: Table, task: FileScanTask) -> pa.Table:
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    try:
        projected = table.schema().select(*COLUMNS)
        found = ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_table([task])
    except (OSError, pa.ArrowException) as error:
        raise AdapterError(f"the lake's file {task.file.file_path} cannot be read: {error}") from error
    schema = arrow_schema()
    return pa.Table.from_arrays([found.column(field.name).cast(field.type) for field in schema], schema=schema)
