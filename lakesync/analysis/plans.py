"""Plans a SQL query on the lake: which snapshots and deltas make up each of its tables, and which columns these have.

A query may read the history `deltas`, and state tables, which have the current rows of one synced table. Deltas
(changes of rows) reach the staging store first, then the history, then the state tables. So a query merges onto the
rows of a state table the newer deltas of the history, and those in staging that are not flushed to the lake yet. Which
deltas are newer follows from their arrival (a push's timestamp by the gateway, which is one app's stream of changes)
and from the table's marks: the arrivals up to which it has the deltas of each gateway. DuckDB
(`lakesync.analysis.query`) and Spark (`lakehouse.spark_query`) execute the same plans.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakesync.analysis.as_of import format_hlc
from lakesync.analysis.catalogue import checkpoint_snapshots, column_bounds, merge_marks, unfilled_columns
from lakesync.model.errors import NotFoundError
from lakesync.model.schema import RESERVED_COLUMNS, is_reserved_column

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.table import Table

    from lakesync.analysis.as_of import AsOf
    from lakesync.analysis.catalogue import LakeReader
    from lakesync.analysis.statement import TableReference
    from lakesync.model.namespaces import Gateways

HISTORY = "deltas"
"""The name of the history in a query."""
BASE_COLUMNS = ("_gateway", "_row", "_arrival")
"""Columns that every state table has besides those of its schema, and that a query can read."""

INFERRED_TYPE = """
CASE WHEN bool_and(value = 'null') THEN 'null'
    WHEN bool_and(value = 'null' OR value LIKE '"%') THEN 'string'
    WHEN bool_and(value IN ('null', 'true', 'false')) THEN 'boolean'
    WHEN bool_and(value = 'null' OR (value >= '-' AND value < ':')) THEN 'number'
    ELSE 'json' END
"""
"""SQL of DuckDB and of Spark: the schema type that all JSON texts `value` fit, for a column that no schema names. A
JSON number begins with a character from `-` to `9`."""


class SnapshotRows(NamedTuple):
    """The rows of a state table in one Iceberg snapshot."""

    snapshot: int
    """The snapshot's id."""
    gateway: str | None
    """Only the rows of this gateway; None for all rows."""


class NewerDeltas(NamedTuple):
    """The deltas that are merged onto the rows of snapshots, selected by their arrival."""

    marks: Mapping[str, int]
    """Gateway → the arrival up to which the snapshots have its deltas. They have none of a gateway without a mark."""
    upto: int | None
    """The last arrival; None for no limit."""


class StateParts(NamedTuple):
    """What the rows of a state table are made of: rows of snapshots, and deltas that are merged onto them."""

    bases: tuple[SnapshotRows, ...]
    """The rows to start from."""
    newer: NewerDeltas | None
    """The deltas to merge; None for a requested snapshot, whose rows are read as they are."""


class HistoryPlan(NamedTuple):
    """How to read the history."""

    table: Table | None
    """The history; None before the first flush."""
    snapshot: int | None
    """The snapshot to read; None if the lake has no deltas."""
    upto: int | None
    """Arrival of the last delta; None for no limit."""


class StatePlan(NamedTuple):
    """How to read a state table."""

    namespace: str
    name: str
    table: Table | None
    """None if no merge has created it yet."""
    parts: StateParts
    typed: Mapping[str, str]
    """The table's typed columns → their schema types, in order."""
    gateways: Gateways
    """The gateways whose rows the table has."""

    def fields_of(self, snapshot: int) -> set[str]:
        """Return the typed columns that are filled in a snapshot. Values of other columns are only in `_cells`.

        `_cells` has all values of a row as JSON texts. A column that was added to the schema later is not filled.
        """
        if self.table is None:
            return set()
        fields = self.table.scan(snapshot_id=snapshot).projection().fields
        unfilled = unfilled_columns(self.table.properties)
        return {field.name for field in fields if field.name in self.typed and field.name not in unfilled}

    def row_count(self, snapshot: int) -> int:
        """Return the approximate number of rows in a snapshot."""
        found = self.table.snapshot_by_id(snapshot) if self.table is not None else None
        total = found.summary["total-records"] if found is not None and found.summary is not None else None
        return int(total or 0)

    def untyped(self, names: Iterable[str]) -> list[str]:
        """Return the columns that need an inferred type, because no typed or reserved column has the name; sorted.

        Args:
            names: names of all columns that the table's rows have.
        """
        used = {name.lower() for name in self.typed}
        untyped = []
        for name in sorted(names):
            if name.lower() not in used and not is_reserved_column(name):
                used.add(name.lower())
                untyped.append(name)
        return untyped


class Planner:
    """Plans each table of a statement, all at the same point in time."""

    def __init__(
        self, lake: LakeReader, unflushed: pa.Table, as_of: AsOf | None, references: Iterable[TableReference]
    ) -> None:
        """Find the statement's tables.

        Args:
            lake: the lake, opened after `unflushed` was read, so that a flush in between loses no delta.
            unflushed: the deltas that are not flushed yet, in the columns of `unflushed.SCHEMA`.
            as_of: the point in time; None for now.
            references: the tables that the statement names.

        Raises:
            NotFoundError: `as_of` is a snapshot that none of the tables has.
        """
        self._lake = lake
        self._namespaces = lake.namespaces
        self._unflushed = unflushed
        self._as_of = as_of
        known = (None, lake.system_namespace, self._namespaces.shared, *self._namespaces.declared)
        self.references = [each for each in references if each.namespace in known]
        """The statement's tables in a namespace of the lake; the engine reports an error for others."""
        self.snapshot_ms: int | None = None
        """Commit time in milliseconds of the requested snapshot; None if no snapshot was requested."""
        if as_of is not None and as_of.snapshot is not None:
            tables = [lake.deltas if self.is_history(each) else self._state(each) for each in self.references]
            self.snapshot_ms = _commit_time(as_of.snapshot, [table for table in tables if table is not None])

    @property
    def deltas(self) -> Table | None:
        """The history; None before the first flush."""
        return self._lake.deltas

    def is_history(self, reference: TableReference) -> bool:
        """Return whether a reference means the history: `deltas` in another namespace is a synced table."""
        return reference.name.lower() == HISTORY and reference.namespace in (None, self._lake.system_namespace)

    def history(self) -> HistoryPlan:
        """Plan the history.

        Raises:
            NotFoundError: nothing had arrived at the requested time.
        """
        self._check_not_too_early()
        deltas = self._lake.deltas
        snapshot = self._snapshot(deltas) if deltas is not None else None
        return HistoryPlan(deltas, snapshot, self._requested_arrival)

    def state(self, reference: TableReference) -> StatePlan:
        """Plan a state table.

        Raises:
            NotFoundError: there is no such table, or nothing had arrived at the requested time.
        """
        state, namespace = self._state(reference), self._namespace(reference)
        gateways = self._namespaces.gateways_in(namespace)
        name = state.name()[-1] if state is not None else self._unmerged_name(reference.name, gateways)
        if self._as_of is None:
            parts = _newest_parts(state)
        elif self._as_of.arrival is not None:
            parts = _parts_at_arrival(state, self._as_of.arrival)
        else:
            parts = _parts_at_snapshot(self._snapshot(state) if state is not None else None)
        if not parts.bases:
            self._check_not_too_early()
        fields = state.schema().fields if state is not None else ()
        # a typed column's comment is its schema type
        typed = {field.name: str(field.doc) for field in fields if field.name not in RESERVED_COLUMNS}
        return StatePlan(namespace, name, state, parts, typed, gateways)

    def unknown_table(self, reference: TableReference) -> NotFoundError:
        """Return the error for a table that does not exist."""
        unflushed = pc.unique(self._unflushed["table_name"]).to_pylist()
        known = sorted({HISTORY, *self._lake.state_tables, *unflushed})
        return NotFoundError(f"there is no table {reference.qualified!r} in the lake; known tables: {', '.join(known)}")

    @property
    def _requested_arrival(self) -> int | None:
        """The requested arrival; None if none was requested."""
        return self._as_of.arrival if self._as_of is not None else None

    def _namespace(self, reference: TableReference) -> str:
        """Return the namespace of the state table that a reference means."""
        return reference.namespace if reference.namespace in self._namespaces.declared else self._namespaces.shared

    def _state(self, reference: TableReference) -> Table | None:
        """Return the state table that a reference means, regardless of upper and lower case."""
        qualified = self._namespaces.table_name(self._namespace(reference), reference.name)
        known = self._lake.state_tables
        return self._lake.state_table(next((name for name in known if name.lower() == qualified.lower()), qualified))

    def _unmerged_name(self, name: str, gateways: Gateways) -> str:
        """Return the name, in the spelling of the pushes, of a table that no merge has created yet."""
        pairs = zip(*(self._unflushed[column].to_pylist() for column in ("gateway", "table_name")), strict=True)
        tables = {table for gateway, table in pairs if gateways.has(gateway)}
        return name if name in tables else next((each for each in tables if each.lower() == name.lower()), name)

    def _snapshot(self, table: Table) -> int | None:
        """Return the snapshot to read: the requested one, the table's snapshot at its time, or the current one."""
        if self._as_of is not None and self._as_of.snapshot is not None:
            if table.snapshot_by_id(self._as_of.snapshot) is not None:
                return self._as_of.snapshot
            earlier = table.snapshot_as_of_timestamp(self.snapshot_ms or 0)
            return earlier.snapshot_id if earlier else None
        current = table.current_snapshot()
        return current.snapshot_id if current else None

    def _check_not_too_early(self) -> None:
        """Check that a delta had arrived by the requested time, if one was requested.

        Raises:
            NotFoundError: none had.
        """
        upto = self._requested_arrival
        first = self._first_arrival() if upto is not None else None
        if upto is not None and first is not None and upto < first:
            raise NotFoundError(
                f"nothing had arrived by {format_hlc(upto)}: the first delta arrived at {format_hlc(first)}; "
                "use that time or a later one"
            )

    def _first_arrival(self) -> int | None:
        """Return the smallest arrival of all deltas; None without deltas."""
        arrivals = [each for each in [pc.min(self._unflushed["arrival"]).as_py()] if each is not None]
        deltas = self._lake.deltas
        if deltas is not None and deltas.current_snapshot() is not None:
            bounds = (column_bounds(deltas, task.file, "arrival") for task in deltas.scan().plan_files())
            arrivals += [low for low, _ in bounds if isinstance(low, int)]
        return min(arrivals, default=None)


def cell_names(table: Table, snapshot: int) -> set[str]:
    """Return the columns that have values in the files of a snapshot, perhaps in deleted rows only.

    It reads only the keys of the maps `_cells`, which are a small part of the files.

    Args:
        table: a state table.
        snapshot: the id of one of its Iceberg snapshots.
    """
    names: set[str] = set()
    for task in table.scan(snapshot_id=snapshot).plan_files():
        with table.io.new_input(task.file.file_path).open() as file:
            parquet = pq.ParquetFile(file)
            paths = [parquet.schema.column(index).path for index in range(len(parquet.schema))]
            keys = [path for path in paths if path.startswith("_cells.") and path.endswith(".key")]
            for batch in parquet.iter_batches(columns=keys):
                names |= set(pc.unique(batch.column(0).flatten().field(0)).to_pylist())
    return names


def explain_unknown_column(column: str, tables: Mapping[str, Collection[str]]) -> str | None:
    """Return an error message for an unknown column, with the known column that is most similar.

    Args:
        column: the name in the statement.
        tables: table of the statement → its columns.

    Returns:
        The message; None if a table has the column, so that the error has another cause.
    """
    known = {name.lower(): name for columns in tables.values() for name in columns}
    if column.lower() in known or not known:
        return None
    near = difflib.get_close_matches(column.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else f"known columns: {', '.join(sorted(known.values()))}"
    where = next(iter(tables)) if len(tables) == 1 else "any table of the query"
    return f"there is no column {column!r} in {where}; {hint}"


def _newest_parts(state: Table | None) -> StateParts:
    """Return the parts of the newest state: the current snapshot, and all deltas above the marks of its gateways."""
    current = state.current_snapshot() if state is not None else None
    if state is None or current is None:
        return StateParts((), NewerDeltas({}, None))
    return StateParts((SnapshotRows(current.snapshot_id, None),), NewerDeltas(merge_marks(state.properties), None))


def _parts_at_arrival(state: Table | None, arrival: int) -> StateParts:
    """Return each gateway's last checkpoint snapshot up to an arrival, and the deltas from there to the arrival.

    A checkpoint tags a snapshot of each state table, which has a gateway's deltas up to exactly one arrival.
    """
    bases: list[SnapshotRows] = []
    marks: dict[str, int] = {}
    for gateway, snapshots in (checkpoint_snapshots(state) if state is not None else {}).items():
        earlier = [each for each in snapshots if each <= arrival]
        if earlier:
            marks[gateway] = max(earlier)
            bases.append(SnapshotRows(snapshots[marks[gateway]], gateway))
    return StateParts(tuple(bases), NewerDeltas(marks, arrival))


def _parts_at_snapshot(snapshot: int | None) -> StateParts:
    """Return the rows of a snapshot without further deltas."""
    return StateParts((SnapshotRows(snapshot, None),) if snapshot is not None else (), None)


def _commit_time(snapshot: int, tables: Iterable[Table]) -> int:
    """Return when a snapshot of one of the tables was committed, in milliseconds.

    Raises:
        NotFoundError: none of the tables has the snapshot.
    """
    newest = []
    for table in tables:
        found = table.snapshot_by_id(snapshot)
        if found is not None:
            return found.timestamp_ms
        newest += [f"{each.snapshot_id} of {table.name()[-1]}" for each in table.snapshots()[-2:]]
    known = f"; the newest snapshots are {', '.join(newest)}" if newest else ""
    raise NotFoundError(
        f"no queried table has the snapshot {snapshot}, which may have expired; use a time with --as-of instead{known}"
    )
