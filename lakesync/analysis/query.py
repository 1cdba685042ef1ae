"""`query`: runs a SQL query over the lake and the unflushed deltas on DuckDB. `lakesync query` calls it.

A delta is a change of one row by a client; unflushed ones are in the staging store (the gateways' database) and not yet
in the lake. The tables of a query are created in a DuckDB database in memory, by the plans of
`lakesync.analysis.plans`: the *history* of all deltas as `deltas`, and *state tables*, each of which has the current
rows of one synced table.

A state table is stored with some of the deltas merged. Its other rows are merged here, from *fragments*: the newer
deltas, and the cells of the rows that they change; see `lakesync.analysis.merge_sql`. An *arrival* is a push's
timestamp by the gateway, which is one app's stream of changes; plans say by it which deltas are newer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import duckdb

from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.merge_sql import DELTA_FRAGMENTS, FRAGMENTS, STATE_FRAGMENTS, quoted, typed_value, visible_rows
from lakesync.analysis.plans import BASE_COLUMNS, INFERRED_TYPE, Planner, cell_names, explain_unknown_column
from lakesync.analysis.scans import all_of, any_of, condition, scan_condition, scan_into
from lakesync.analysis.statement import parse_statement
from lakesync.analysis.unflushed import unflushed_table
from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakesync.analysis.as_of import AsOf
    from lakesync.analysis.plans import HistoryPlan, SnapshotRows, StatePlan
    from lakesync.analysis.scans import Predicate
    from lakesync.analysis.statement import Statement, TableReference
    from lakesync.config import Config

_UNKNOWN_COLUMN = re.compile(r"(?:Referenced column|does not have a column named|column) \"([^\"]+)\"")
"""DuckDB's messages about a column that does not exist."""

_INTERNAL = quoted("lakesync.own")
"""The database with the tables that a statement cannot name, because names of synced tables contain no dot."""

_TYPES = {"string": "VARCHAR", "number": "DOUBLE", "boolean": "BOOLEAN", "json": "VARCHAR", "null": "VARCHAR"}
"""Schema type → DuckDB's type of the typed column."""
_DELTA_COLUMNS = ("gateway", "row_id", "arrival", "hlc", "client_id", "delta_id", "op", "columns")
"""The columns of the history that a merge reads."""
_STATE_COLUMNS = (*BASE_COLUMNS, "_cells", "_tombstone", "_inserted")
"""The columns of a state table that a merge reads."""
_POSITION = ("gateway", "shard", "epoch", "seq", "ordinal")
"""The columns that identify a delta's position in staging's log."""
_POSITION_DDL = "gateway VARCHAR, shard VARCHAR, epoch BIGINT, seq BIGINT, ordinal INTEGER"
_IS_SAME_POSITION = " AND ".join(f"unflushed.{name} = flushed.{name}" for name in _POSITION)
_IS_TOUCHED = "EXISTS (FROM touched WHERE touched._gateway = scanned._gateway AND touched._row = scanned._row)"
"""The condition for a scanned row that is in the table `touched`: onto it, newer deltas are merged."""
_MAX_ROW_IDS = 500
"""Rows that a scan selects by a list of their ids; for more, the whole table is scanned."""

_HISTORY_DDL = (
    "gateway VARCHAR, shard VARCHAR, epoch BIGINT, batch_id VARCHAR, seq BIGINT, ordinal INTEGER, arrival BIGINT, "
    "day DATE, table_name VARCHAR, row_id VARCHAR, op VARCHAR, client_id VARCHAR, hlc BIGINT, delta_id VARCHAR, "
    "width INTEGER, columns MAP(VARCHAR, VARCHAR)"
)
"""The columns of `deltas`, as the statement sees them."""


def query(config: Config, sql: str, as_of: AsOf | None = None) -> pa.Table:
    """Run a query over the state tables, by their names, and over the history, as `deltas`.

    Args:
        config: names the lake and the store.
        sql: a query in DuckDB's SQL.
        as_of: the point in time; None for now, including unflushed deltas.

    Returns:
        The result.

    Raises:
        ValidationError: the text is not a query, or DuckDB cannot run it.
        NotFoundError: a table does not exist, or nothing had arrived at the requested time.
        LakeUnavailableError: there is no catalogue.
        StagingUnavailableError: unflushed deltas cannot be read.
    """
    statement = parse_statement(sql)
    unflushed = unflushed_table(config)  # before the lake: a delta flushed in between is read twice, never missed
    with LakeReader(config) as lake:
        planner = Planner(lake, unflushed, as_of, statement.tables)
        tables = _DuckDbTables(config.lake.catalog, planner, unflushed)
        try:
            return tables.run(statement)
        except duckdb.Error as error:
            unknown = _UNKNOWN_COLUMN.search(str(error))
            message = explain_unknown_column(unknown[1], tables.columns) if unknown is not None else None
            raise ValidationError(message or f"DuckDB cannot run this query: {str(error).strip()}") from error
        finally:
            tables.database.close()


class _DuckDbTables:
    """Creates the tables that a statement names in an in-memory DuckDB database.

    The database named like the catalogue has the views that the statement sees. All other tables are in a second
    database, so that a statement cannot read them by the name of a synced table.
    """

    def __init__(self, catalogue: str, planner: Planner, unflushed: pa.Table) -> None:
        """Create the database.

        Args:
            catalogue: the catalogue's name.
            planner: plans the statement's tables.
            unflushed: the deltas that are not flushed yet, in the columns of `unflushed.SCHEMA`.
        """
        self.database = duckdb.connect()
        self.columns: dict[str, list[str]] = {}
        """Table as the statement names it → its columns, for each table that was created."""
        self._planner = planner
        self._visible = quoted(catalogue)
        """The database that the statement sees."""
        self._table_count = 0
        """How many names `_new_name` has returned."""
        self.database.execute(
            f"ATTACH ':memory:' AS {self._visible}; ATTACH ':memory:' AS {_INTERNAL}; USE {_INTERNAL}; DETACH memory; "
            "SET TimeZone = 'UTC'; SET python_enable_replacements = false"
        )
        for name in (self._visible, _INTERNAL):
            self.database.execute(f"CREATE MACRO {name}.main.hlc_time(hlc) AS make_timestamp((hlc >> 16) * 1000)")
        self.database.register("unflushed_arrow", unflushed)
        self.database.execute("CREATE TABLE unflushed AS FROM unflushed_arrow")
        self.database.unregister("unflushed_arrow")

    def run(self, statement: Statement) -> pa.Table:
        """Create the statement's tables and run it.

        Raises:
            NotFoundError: a table does not exist, or nothing had arrived at the requested time.
            duckdb.Error: DuckDB cannot run the statement.
        """
        for reference in self._planner.references:
            if self._planner.is_history(reference):
                created = self._create_history(reference, self._planner.history(), statement)
            else:
                created = self._create_state(reference, self._planner.state(reference), statement)
            schema = f"{self._visible}.{quoted(reference.namespace or 'main')}"
            self.database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            view = f"{schema}.{quoted(reference.name)}"
            self.database.execute(f"CREATE VIEW IF NOT EXISTS {view} AS FROM {_INTERNAL}.main.{created}")
        self.database.execute(f"USE {self._visible}")
        return self.database.sql(statement.sql).to_arrow_table()

    def _create_history(self, reference: TableReference, plan: HistoryPlan, statement: Statement) -> str:
        """Create the table of the history and return its name. It includes unflushed deltas, whose batch id is null."""
        target = self._new_name()
        names = [column.split()[0] for column in _HISTORY_DDL.split(", ")]
        self.columns[reference.qualified] = names
        self.database.execute(f"CREATE TABLE {target} ({_HISTORY_DDL})")
        columns = [name for name in names if statement.reads(name)] or ["seq"]  # for count(*), any column will do
        bound = condition("arrival", "<=", plan.upto) if plan.upto is not None else all_of()
        if plan.table is not None and plan.snapshot is not None:
            row_filter = all_of(scan_condition(reference.predicates, plan.table.schema()), bound)
            scan_into(self.database, f"{target} BY NAME", plan.table, columns, row_filter, snapshot=plan.snapshot)
        if self._planner.snapshot_ms is None:  # no snapshot was requested
            self._drop_flushed(plan.table)
            self.database.execute(
                f"INSERT INTO {target} BY NAME SELECT *, CAST(hlc_time(arrival) AS DATE) AS day FROM unflushed"
                + (f" WHERE arrival <= {plan.upto}" if plan.upto is not None else "")
            )
        return target

    def _create_state(self, reference: TableReference, plan: StatePlan, statement: Statement) -> str:
        """Create the table of a state table's visible rows and return its name.

        The newer deltas become fragments. A row is *touched* if it has a fragment. Rows that are not are copied from
        the snapshot; the cells of the others become fragments too, and the merge of all fragments gives these rows.

        A column without a schema type gets the type that all of its values fit. That depends on all rows, so no
        predicate limits the scan if the statement may read such a column.
        """
        may_read_untyped = plan.table is None or statement.reads_others([*BASE_COLUMNS, *plan.typed])
        self._load_fragments(plan, () if may_read_untyped else reference.predicates)
        untyped = self._untyped_columns(plan) if may_read_untyped else []
        if plan.table is None and not self._count("fragments"):
            raise self._planner.unknown_table(reference)
        self.columns[reference.qualified] = [*BASE_COLUMNS, *plan.typed, *untyped]
        columns: dict[str, str | None] = {name: kind for name, kind in plan.typed.items() if statement.reads(name)}
        untyped_read = [name for name in untyped if statement.reads(name)]
        columns |= dict.fromkeys(untyped_read)
        target = self._new_name()
        definitions = "".join(
            f", {quoted(name)} {_TYPES[kind] if kind else 'VARCHAR'}" for name, kind in columns.items()
        )
        self.database.execute(f"CREATE TABLE {target} (_gateway VARCHAR, _row VARCHAR, _arrival BIGINT{definitions})")
        self.database.execute("CREATE OR REPLACE TABLE touched AS SELECT DISTINCT _gateway, _row FROM fragments")
        for base in plan.parts.bases:
            self._load_untouched_rows(plan, base, target, columns, () if untyped_read else reference.predicates)
            self._load_touched_rows(plan, base)
        query, parameters = visible_rows(columns)
        self.database.execute(f"INSERT INTO {target} BY NAME {query}", parameters)
        return self._with_inferred_types(target, untyped_read) if untyped_read else target

    def _untyped_columns(self, plan: StatePlan) -> list[str]:
        """Return the columns that have values but no schema type."""
        query = "SELECT DISTINCT unnest(map_keys(columns)) FROM fragments"
        names = {name for (name,) in self.database.execute(query).fetchall()}
        if plan.table is not None:
            snapshots = {base.snapshot for base in plan.parts.bases}
            names = names.union(*(cell_names(plan.table, snapshot) for snapshot in snapshots))
        return plan.untyped(names)

    def _with_inferred_types(self, rows: str, untyped: Sequence[str]) -> str:
        """Create a view of `rows` in which untyped columns have the type that their JSON texts fit; return its name.

        Columns without a value in any row are left out.
        """
        results = {
            name: self.database.execute(
                f"SELECT {INFERRED_TYPE} FROM (SELECT {quoted(name)} AS value FROM {rows}) WHERE value IS NOT NULL "
                "HAVING count(*) > 0"
            ).fetchone()
            for name in untyped
        }
        inferred_types = {name: result[0] for name, result in results.items() if result is not None}
        typed = "".join(
            f", {typed_value(kind, quoted(name))} AS {quoted(name)}" for name, kind in inferred_types.items()
        )
        others = f"* EXCLUDE ({', '.join(map(quoted, untyped))})"
        view = self._new_name()
        self.database.execute(f"CREATE VIEW {view} AS SELECT {others}{typed} FROM {_INTERNAL}.main.{rows}")
        return view

    def _load_fragments(self, plan: StatePlan, predicates: tuple[Predicate, ...]) -> None:
        """Load the deltas that are merged onto the plan's snapshots, from the history and from staging."""
        self.database.execute(f"CREATE OR REPLACE TABLE fragments ({FRAGMENTS})")
        if plan.parts.newer is None:
            return
        marks, upto = plan.parts.newer
        gateways = plan.gateways
        deltas = self._planner.deltas
        if deltas is not None:
            conditions = [condition("table_name", "=", plan.name), _arrived_after(marks)]
            # predicates on the row's key are also true of its deltas; those on other columns only of the merged row
            conditions.append(scan_condition(predicates, deltas.schema(), {"_gateway": "gateway", "_row": "row_id"}))
            if upto is not None:
                conditions.append(condition("arrival", "<=", upto))
            if gateways.names:
                conditions.append(condition("gateway", "not in" if gateways.all_except else "in", set(gateways.names)))
            row_filter = all_of(*conditions)
            scan_into(self.database, "fragments", deltas, _DELTA_COLUMNS, row_filter, select=DELTA_FRAGMENTS)
        where, values = ["table_name = ?"], list[object]([plan.name])
        if upto is not None:
            where.append("arrival <= ?")
            values.append(upto)
        if gateways.names:
            where.append("NOT list_contains(?, gateway)" if gateways.all_except else "list_contains(?, gateway)")
            values.append(sorted(gateways.names))
        self.database.execute(
            f"INSERT INTO fragments {DELTA_FRAGMENTS} FROM unflushed WHERE {' AND '.join(where)}", values
        )

    def _load_untouched_rows(
        self,
        plan: StatePlan,
        base: SnapshotRows,
        target: str,
        columns: Mapping[str, str | None],
        predicates: tuple[Predicate, ...],
    ) -> None:
        """Load a snapshot's rows without newer deltas into `target`, as they are.

        A column that has no typed values in the snapshot is read from the rows' cells.

        Args:
            plan: how to read the state table.
            base: the snapshot, of which all rows or those of one gateway are read.
            target: the DuckDB table.
            columns: column of `target` → its schema type; None for an untyped one, which is loaded as JSON text.
            predicates: conditions on the rows.
        """
        assert plan.table is not None
        filled = plan.fields_of(base.snapshot)
        stored_names = {name.lower() for name in {*filled, *BASE_COLUMNS}}
        on_stored = [each for each in predicates if each.column.lower() in stored_names]
        is_alive = condition("_gone", "=", False)  # a deleted row stays in the state table, with `_gone`
        meets_predicates = scan_condition(on_stored, plan.table.schema())
        stored = [name for name in columns if name in filled]
        # parameter → the name of a column, with which it selects the column's cell
        from_cells = {f"column{index}": name for index, name in enumerate(columns) if name not in filled}
        texts = {name: f"_cells[${parameter}].value" for parameter, name in from_cells.items()}
        select_cells = "".join(
            f", {typed_value(columns[name], texts[name])} AS {quoted(name)}" for name in from_cells.values()
        )
        # SQL for a column of type null does not name its parameter, and DuckDB rejects a value for it
        values = {parameter: name for parameter, name in from_cells.items() if columns[name] != "null"}
        scan_into(
            self.database,
            f"{target} BY NAME",
            plan.table,
            [*BASE_COLUMNS, *stored, *(["_cells"] if from_cells else [])],
            all_of(_rows_of(base), is_alive, meets_predicates),
            snapshot=base.snapshot,
            select=f"SELECT {', '.join(map(quoted, [*BASE_COLUMNS, *stored]))}{select_cells}",
            where=f"NOT {_IS_TOUCHED}",
            values=values,
        )

    def _load_touched_rows(self, plan: StatePlan, base: SnapshotRows) -> None:
        """Load a snapshot's rows with newer deltas into `fragments`."""
        touched = [row for (row,) in self.database.execute("SELECT DISTINCT _row FROM touched").fetchall()]
        if not touched:
            return
        assert plan.table is not None
        rows = condition("_row", "in", set(touched)) if len(touched) <= _MAX_ROW_IDS else all_of()
        self.database.execute("DROP TABLE IF EXISTS state_rows")
        scan_into(
            self.database,
            "state_rows",
            plan.table,
            _STATE_COLUMNS,
            all_of(_rows_of(base), rows),
            snapshot=base.snapshot,
            where=_IS_TOUCHED,
            create=True,
        )
        self.database.execute(f"INSERT INTO fragments {STATE_FRAGMENTS}")

    def _drop_flushed(self, deltas: Table | None) -> None:
        """Remove from `unflushed` the deltas that have reached the lake since staging was read."""
        row = self.database.execute(
            "SELECT min(arrival), max(arrival), list(DISTINCT gateway) FROM unflushed"
        ).fetchone()
        if deltas is None or row is None or row[0] is None:
            return
        low, high, gateways = row
        self.database.execute(f"CREATE OR REPLACE TABLE flushed ({_POSITION_DDL})")
        row_filter = all_of(
            condition("arrival", ">=", low),
            condition("arrival", "<=", high),
            any_of(condition("gateway", "=", gateway) for gateway in gateways),
        )
        scan_into(self.database, "flushed BY NAME", deltas, _POSITION, row_filter)
        self.database.execute(f"DELETE FROM unflushed USING flushed WHERE {_IS_SAME_POSITION}")

    def _new_name(self) -> str:
        """Return a name for a DuckDB table that is not used yet."""
        self._table_count += 1
        return f"table_{self._table_count}"

    def _count(self, table: str) -> int:
        """Return the number of rows of a DuckDB table."""
        counted = self.database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(counted[0]) if counted else 0


def _rows_of(base: SnapshotRows) -> BooleanExpression:
    """Return the condition for the rows that a plan reads of a snapshot."""
    return condition("_gateway", "=", base.gateway) if base.gateway is not None else all_of()


def _arrived_after(marks: Mapping[str, int]) -> BooleanExpression:
    """Return the condition for deltas that are not merged yet.

    Args:
        marks: gateway → the arrival up to which its deltas are merged; of other gateways, all deltas are returned.
    """
    later = [
        all_of(condition("gateway", "=", gateway), condition("arrival", ">", mark)) for gateway, mark in marks.items()
    ]
    others = condition("gateway", "not in", set(marks)) if marks else all_of()
    return any_of([*later, others])
