"""Read-only adapter for the lake's table of all deltas (changes of rows), through pyiceberg.

Flows and migrations (copies between adapters) read the lake with it, and clients that pull from the source `lake`;
`registry.open_adapter` creates it for `iceberg:` URIs. Only the pipeline writes the lake, with Spark, so writes are
rejected. A query is ordered by *arrival* (the gateway's timestamp of receipt) or by *hlc* (the client's timestamp). It
reads only the data files whose column bounds, in Iceberg's manifests, overlap with it. `file_scan.py`, which answers
the query, calls a file with its bounds a *segment*. Needs pyiceberg: `pip install 'lakesync[query]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from lakesync.adapters.arrow import DELTA_COLUMNS, arrow_schema
from lakesync.adapters.deltas import BatchChecksum, DeltaQuery
from lakesync.adapters.file_scan import FileAdapter, FileCache, Segment
from lakesync.model.errors import AdapterError, ConfigurationError, extra
from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

_DELTAS = "deltas"
"""The table's name."""
_MAX_INT64 = (1 << 63) - 1


class _DataFile(NamedTuple):
    """A data file to read."""

    table: Table
    """The table as it was when the query began."""
    task: FileScanTask


class IcebergDeltas(FileAdapter[_DataFile]):
    """Read-only `DatabaseAdapter` for the lake's table of deltas."""

    def __init__(self, catalog: Catalog, namespace: str = "lakesync") -> None:
        """Create the adapter.

        Args:
            catalog: the pyiceberg catalog.
            namespace: the system namespace, which contains `deltas`.
        """
        self._catalog = catalog
        self._name = f"{namespace}.{_DELTAS}"
        self._cache = FileCache()

    @classmethod
    def of(cls, uri: str) -> IcebergDeltas:
        """Open `iceberg://NAMESPACE?uri=CATALOGUE&warehouse=…`; the query options are pyiceberg properties.

        The option `catalogue=NAME` is the catalog's name; the default is `lake`.

        Raises:
            ConfigurationError: pyiceberg is not installed, or rejects the properties.
        """
        with extra("query", "Iceberg needs pyiceberg"):
            from lakesync.wire.compat_pyiceberg import load_bounded  # with timeouts
        parts = urlsplit(uri)
        try:
            properties = dict(parse_qsl(parts.query))
            name = properties.pop("catalogue", "lake")
            return cls(load_bounded(name, properties), parts.netloc or "lakesync")
        except Exception as error:  # pyiceberg raises ValueError, NotImplementedError and driver errors
            raise ConfigurationError(
                f"the catalog of {without_password(uri.partition('?')[0])!r} cannot be opened: "
                f"{without_password(str(error))}; check the URI's options"
            ) from None  # the error itself may contain the password

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:  # noqa: ARG002
        """Reject the write.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"batch {batch_id!r} cannot be written to {self._name}: only the pipeline writes the lake"
        )

    def latest_arrivals(self) -> dict[str, int]:
        """Return `GATEWAY/SHARD` → its newest arrival, from the files' statistics; see `StreamSource`.

        This names a stream: the deltas of one gateway (an app) in one shard, a store with some of its tables. A file
        with deltas of several streams, which LakeSync does not write, is left out.
        """
        table = self._table()
        *stream_fields, arrival_field = (
            table.schema().find_field(name).field_id for name in ("gateway", "shard", "arrival")
        )
        latest: dict[str, int] = {}
        for task in table.scan().plan_files():
            low, high = (
                [(bounds or {}).get(field, b"") for field in stream_fields]
                for bounds in (task.file.lower_bounds, task.file.upper_bounds)
            )
            if all(low) and low == high:
                stream = b"/".join(low).decode()
                latest[stream] = max(_value_range(task, arrival_field)[1], latest.get(stream, 0))
        return latest

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def _table(self) -> Table:
        """Load the table's current metadata."""
        try:
            return self._catalog.load_table(self._name)
        except Exception as error:  # the catalog's driver may raise anything
            raise AdapterError(f"the lake's table {self._name} cannot be read: {error}") from error

    def _segments(self, query: DeltaQuery) -> Iterator[Segment[_DataFile]]:
        """Yield the data files that may contain deltas that match the query, by their manifests."""
        from pyiceberg import expressions as ice

        table = self._table()
        conditions: list[tuple[Any, str, Any]] = [
            (ice.GreaterThanOrEqual, query.order, max(query.since, query.after.value if query.after else -1))
        ]
        if query.until is not None:
            conditions.append((ice.LessThanOrEqual, query.order, query.until))
        if query.gateway is not None:
            conditions.append((ice.EqualTo, "gateway", query.gateway))
        if query.tables:
            conditions.append((ice.In, "table_name", query.tables))
        row_filter: ice.BooleanExpression = ice.AlwaysTrue()
        for predicate, column, value in conditions:  # mypy does not understand pyiceberg's metaclass
            row_filter = ice.And(row_filter, predicate(column, value))
        field = table.schema().find_field(query.order)
        for task in table.scan(row_filter=row_filter).plan_files():
            yield Segment(_DataFile(table, task), *_value_range(task, field.field_id), task.file.record_count)

    def _read(self, file: _DataFile) -> pa.Table:
        """Return a data file's deltas, from the cache if they were read with as many delete files.

        A delete file, which hides rows of the data file, may have been added since.
        """
        key = f"{file.task.file.file_path} {len(file.task.delete_files)}"
        return self._cache.get(key, lambda: _read_file(*file))


def _value_range(task: FileScanTask, field_id: int) -> tuple[int, int]:
    """Return a file's minimum and maximum of an int64 column, from its statistics; 0 to 2**63-1 if it has none."""
    low, high = ((bounds or {}).get(field_id) for bounds in (task.file.lower_bounds, task.file.upper_bounds))
    if low is None or high is None:
        return 0, _MAX_INT64
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)


def _read_file(table: Table, task: FileScanTask) -> pa.Table:
    """Read the deltas of one data file."""
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    try:
        projected = table.schema().select(*DELTA_COLUMNS)
        found = ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_table([task])
    except (OSError, pa.ArrowException) as error:
        raise AdapterError(f"the lake's file {task.file.file_path} cannot be read: {error}") from error
    schema = arrow_schema()
    return pa.Table.from_arrays([found.column(field.name).cast(field.type) for field in schema], schema=schema)
