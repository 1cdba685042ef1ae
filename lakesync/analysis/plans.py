"""Which snapshots and deltas a table of a query is made of, and its columns: the same for DuckDB and Spark."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakesync.analysis import sources
from lakesync.analysis.catalogue import unfilled_of
from lakesync.analysis.moments import shown
from lakesync.model.errors import NotFoundError
from lakesync.model.schema import RESERVED_COLUMNS, is_reserved_column

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.table import Table

    from lakesync.analysis.catalogue import Lake
    from lakesync.analysis.moments import AsOf
    from lakesync.analysis.sources import Parts
    from lakesync.analysis.statement import Named
    from lakesync.model.namespaces import Gateways

HISTORY = "deltas"
KEYS = ("_gateway", "_row", "_arrival")
"""Columns of every state table, beside its own."""

KIND = """
CASE WHEN bool_and(value = 'null') THEN 'null'
    WHEN bool_and(value = 'null' OR value LIKE '"%') THEN 'string'
    WHEN bool_and(value IN ('null', 'true', 'false')) THEN 'boolean'
    WHEN bool_and(value = 'null' OR (value >= '-' AND value < ':')) THEN 'number'
    ELSE 'json' END
"""
"""The schema type that the JSON texts `value` fit, for a column that no schema names. DuckDB's SQL and Spark's."""


class HistoryPlan(NamedTuple):
    """The history at one moment."""

    table: Table | None
    snapshot: int | None
    """None: nothing of it is read."""
    upto: int | None
    """The last arrival; None: no bound."""


class StatePlan(NamedTuple):
    """A state table at one moment."""

    namespace: str
    name: str
    table: Table | None
    """None where no merge has made it yet."""
    parts: Parts
    typed: Mapping[str, str]
    """The table's typed columns and their schema types, in order."""
    whose: Gateways

    def fields_of(self, snapshot: int) -> set[str]:
        """The typed columns that the rows of a snapshot have; values of others are in `_cells` alone."""
        if self.table is None:
            return set()
        fields = self.table.scan(snapshot_id=snapshot).projection().fields
        return {field.name for field in fields if field.name in self.typed} - unfilled_of(self.table)

    def rows_of(self, snapshot: int) -> int:
        """How many rows a snapshot has, about."""
        found = self.table.snapshot_by_id(snapshot) if self.table is not None else None
        told = found.summary["total-records"] if found is not None and found.summary is not None else None
        return int(told or 0)

    def untyped(self, names: Iterable[str]) -> list[str]:
        """Those of some columns that need a type of their own: no typed column and none of the lake's has the name."""
        taken = {name.lower() for name in self.typed}
        found = []
        for name in sorted(names):
            if name.lower() not in taken and not is_reserved_column(name):
                taken.add(name.lower())
                found.append(name)
        return found


class Plans:
    """Plans each table of a statement at one moment."""

    def __init__(self, lake: Lake, waiting: pa.Table, as_of: AsOf | None, wanted: Iterable[Named]) -> None:
        """Find the statement's tables.

        Args:
            lake: read after `waiting` was.
            waiting: the deltas that are not flushed yet, as `unflushed.SCHEMA`.
            as_of: the moment; None: now.
            wanted: the tables that the statement names.

        Raises:
            NotFoundError: no table has the snapshot of `as_of`.
        """
        self._lake = lake
        self._where = lake.namespaces
        self._waiting = waiting
        self._as_of = as_of
        namespaces = (None, lake.system, self._where.shared, *self._where.apart)
        self.wanted = [each for each in wanted if each.namespace in namespaces]
        self.moment: int | None = None
        """The commit time of the snapshot that was asked for, in ms; None where none was."""
        if as_of is not None and as_of.snapshot is not None:
            there = [lake.deltas if self.is_history(each) else self._state(each) for each in self.wanted]
            self.moment = sources.moment_of(as_of.snapshot, [table for table in there if table is not None])

    @property
    def deltas(self) -> Table | None:
        """The history; None before the first flush."""
        return self._lake.deltas

    def is_history(self, wanted: Named) -> bool:
        """Whether a name means the history; `NAMESPACE.deltas` is a synced table of that name."""
        return wanted.name.lower() == HISTORY and wanted.namespace in (None, self._lake.system)

    def history(self) -> HistoryPlan:
        """Plan the history.

        Raises:
            NotFoundError: nothing had arrived by then.
        """
        deltas, upto = self._lake.deltas, self._upto
        self._check_begun(upto)
        return HistoryPlan(deltas, self._snapshot(deltas) if deltas is not None else None, upto)

    def state(self, wanted: Named) -> StatePlan:
        """Plan a state table.

        Raises:
            NotFoundError: there is no such table, or nothing had arrived by then.
        """
        state, namespace = self._state(wanted), self._namespace(wanted)
        whose = self._where.within(namespace)
        name = state.name()[-1] if state is not None else self._spelled(wanted.name, whose)
        if self._as_of is None:
            parts = sources.newest(state)
        elif self._as_of.arrival is not None:
            parts = sources.as_of_arrival(state, self._as_of.arrival)
        else:
            parts = sources.at_snapshot(self._snapshot(state) if state is not None else None)
        if not parts.bases:
            self._check_begun(parts.upto)
        fields = state.schema().fields if state is not None else ()
        typed = {field.name: str(field.doc) for field in fields if field.name not in RESERVED_COLUMNS}
        return StatePlan(namespace, name, state, parts, typed, whose)

    def missing(self, wanted: Named) -> NotFoundError:
        """The error of a table that is not there."""
        waiting = pc.unique(self._waiting["table_name"]).to_pylist()
        known = sorted({HISTORY, *self._lake.states, *waiting})
        return NotFoundError(f"there is no table {wanted.shown!r} in the lake; there are {', '.join(known)}")

    @property
    def _upto(self) -> int | None:
        return self._as_of.arrival if self._as_of is not None else None

    def _namespace(self, wanted: Named) -> str:
        return wanted.namespace if wanted.namespace in self._where.apart else self._where.shared

    def _state(self, wanted: Named) -> Table | None:
        called = self._where.called(self._namespace(wanted), wanted.name)
        return self._lake.state(next((name for name in self._lake.states if name.lower() == called.lower()), called))

    def _spelled(self, name: str, whose: Gateways) -> str:
        """A table that no merge has made yet, as pushes name it."""
        known = zip(*(self._waiting[column].to_pylist() for column in ("gateway", "table_name")), strict=True)
        mine = {table for gateway, table in known if whose.has(gateway)}
        return name if name in mine else next((each for each in mine if each.lower() == name.lower()), name)

    def _snapshot(self, table: Table) -> int | None:
        """The snapshot of a table to read: the one that was asked for, that of its moment, or the current one."""
        if self._as_of is not None and self._as_of.snapshot is not None:
            if table.snapshot_by_id(self._as_of.snapshot) is not None:
                return self._as_of.snapshot
            then = table.snapshot_as_of_timestamp(self.moment or 0)
            return then.snapshot_id if then else None
        current = table.current_snapshot()
        return current.snapshot_id if current else None

    def _check_begun(self, upto: int | None) -> None:
        first = self._first_arrival() if upto is not None else None
        if upto is not None and first is not None and upto < first:
            raise NotFoundError(
                f"nothing had arrived by {shown(upto)}: the first delta came at {shown(first)}; ask for that or later"
            )

    def _first_arrival(self) -> int | None:
        firsts = [each for each in [pc.min(self._waiting["arrival"]).as_py()] if each is not None]
        deltas = self._lake.deltas
        if deltas is not None and deltas.current_snapshot() is not None:
            field = deltas.schema().find_field("arrival")
            for task in deltas.scan().plan_files():
                bound = (task.file.lower_bounds or {}).get(field.field_id)
                if bound is not None:
                    firsts.append(int.from_bytes(bound, "little", signed=True))
        return min(firsts, default=None)


def cell_names(table: Table, snapshot: int) -> set[str]:
    """The columns of which a snapshot's files have cells; perhaps some of deleted rows alone.

    Reads the maps' keys and nothing else of the files.
    """
    found: set[str] = set()
    for task in table.scan(snapshot_id=snapshot).plan_files():
        with table.io.new_input(task.file.file_path).open() as file:
            opened = pq.ParquetFile(file)
            leaves = [opened.schema.column(place).path for place in range(len(opened.schema))]
            keys = [leaf for leaf in leaves if leaf.startswith("_cells.") and leaf.endswith(".key")]
            for batch in opened.iter_batches(columns=keys):
                found |= set(pc.unique(batch.column(0).flatten().field(0)).to_pylist())
    return found


def suggestion(column: str, tables: Mapping[str, Collection[str]]) -> str | None:
    """What to say of a column that is not there; None where a table has it, so that something else is wrong.

    Args:
        column: as the statement has it.
        tables: the columns of each table of the statement.
    """
    known = {name.lower(): name for columns in tables.values() for name in columns}
    if column.lower() in known or not known:
        return None
    near = difflib.get_close_matches(column.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(sorted(known.values()))}"
    where = next(iter(tables)) if len(tables) == 1 else "any table of the query"
    return f"there is no column {column!r} in {where}: {hint}"
