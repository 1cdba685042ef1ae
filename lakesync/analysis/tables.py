"""The lake's tables in DuckDB: state tables with their visible rows, and the history as `deltas`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
from pyiceberg import expressions as ice

from lakesync.analysis.plans import KEYS, KIND, cell_names
from lakesync.analysis.reduction import OF_DELTAS, OF_STATE, PIECES, named, typed_value, visible_rows
from lakesync.analysis.scans import both, either, holds, pushed, scan_into

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from lakesync.analysis.plans import HistoryPlan, Plans, StatePlan
    from lakesync.analysis.predicate import Predicate
    from lakesync.analysis.sources import Base
    from lakesync.analysis.statement import Named, Statement

_OWN = named("lakesync.own")
"""The database of tables that no statement may see. Names of synced tables have no full stop."""

_TYPES = {"string": "VARCHAR", "number": "DOUBLE", "boolean": "BOOLEAN", "json": "VARCHAR", "null": "VARCHAR"}
_PIECES_OF_DELTAS = ("gateway", "row_id", "arrival", "hlc", "client_id", "delta_id", "op", "columns")
_PIECES_OF_STATE = (*KEYS, "_cells", "_tombstone", "_inserted")
_PLACE = ("gateway", "shard", "epoch", "seq", "ordinal")
_FEW = 500
"""Rows that a scan can be told by their ids."""

_HISTORY = (
    "gateway VARCHAR, shard VARCHAR, epoch BIGINT, batch_id VARCHAR, seq BIGINT, ordinal INTEGER, arrival BIGINT, "
    "day DATE, table_name VARCHAR, row_id VARCHAR, op VARCHAR, client_id VARCHAR, hlc BIGINT, delta_id VARCHAR, "
    "width INTEGER, columns MAP(VARCHAR, VARCHAR)"
)


class Tables:
    """Makes the tables that a statement names in a DuckDB database of its own.

    What the statement sees is in the database that is called as the catalogue is. Everything else is in another one, so
    that no table of its own can be taken for a synced one.
    """

    def __init__(self, catalogue: str, plans: Plans, waiting: pa.Table) -> None:
        """Args: catalogue: its name; waiting: the deltas that are not flushed yet, as `unflushed.SCHEMA`."""
        self.database = duckdb.connect()
        self.columns: dict[str, list[str]] = {}
        """The columns of each table that was made, as the statement names it."""
        self._plans = plans
        self._seen = named(catalogue)
        self._made = 0
        self.database.execute(
            f"ATTACH ':memory:' AS {self._seen}; ATTACH ':memory:' AS {_OWN}; USE {_OWN}; DETACH memory; "
            "SET TimeZone = 'UTC'; SET python_enable_replacements = false"
        )
        for place in (self._seen, _OWN):
            self.database.execute(f"CREATE MACRO {place}.main.hlc_time(hlc) AS make_timestamp((hlc >> 16) * 1000)")
        self.database.register("waiting_now", waiting)
        self.database.execute("CREATE TABLE waiting AS FROM waiting_now")
        self.database.unregister("waiting_now")

    def answer(self, statement: Statement) -> pa.Table:
        """Make every table and run the statement.

        Raises:
            NotFoundError: there is no such table, or nothing of it at that moment.
            duckdb.Error: the statement cannot be run.
        """
        for each in self._plans.wanted:
            if self._plans.is_history(each):
                made = self._make_history(each, self._plans.history(), statement)
            else:
                made = self._make_state(each, self._plans.state(each), statement)
            schema = f"{self._seen}.{named(each.namespace or 'main')}"
            self.database.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            self.database.execute(f"CREATE VIEW IF NOT EXISTS {schema}.{named(each.name)} AS FROM {_OWN}.main.{made}")
        self.database.execute(f"USE {self._seen}")
        return self.database.sql(statement.sql).to_arrow_table()

    def _make_history(self, wanted: Named, plan: HistoryPlan, statement: Statement) -> str:
        """The history; rows that are not flushed yet have no batch."""
        target = self._new_name()
        names = [column.split()[0] for column in _HISTORY.split(", ")]
        self.columns[wanted.shown] = names
        self.database.execute(f"CREATE TABLE {target} ({_HISTORY})")
        columns = [name for name in names if statement.reads(name)] or ["seq"]
        bound = holds("arrival", "<=", plan.upto) if plan.upto is not None else ice.AlwaysTrue()
        if plan.table is not None and plan.snapshot is not None:
            filters = both(pushed(wanted.predicates, plan.table.schema()), bound)
            scan_into(self.database, f"{target} BY NAME", plan.table, columns, filters, snapshot=plan.snapshot)
        if self._plans.moment is None:
            self._drop_flushed(plan.table)
            self.database.execute(
                f"INSERT INTO {target} BY NAME SELECT *, CAST(hlc_time(arrival) AS DATE) AS day FROM waiting"
                + (f" WHERE arrival <= {plan.upto}" if plan.upto is not None else "")
            )
        return target

    def _make_state(self, wanted: Named, plan: StatePlan, statement: Statement) -> str:
        """The visible rows, with the typed columns that are read, and those without a type by what their values fit.

        Which columns there are without a type, and what they fit, is a matter of all rows: no filter goes before.
        """
        has_others = plan.table is None or statement.reads_others([*KEYS, *plan.typed])
        self._load_pieces(plan, () if has_others else wanted.predicates)
        untyped = self._untyped(plan) if has_others else []
        if plan.table is None and not self._count("pieces"):
            raise self._plans.missing(wanted)
        self.columns[wanted.shown] = [*KEYS, *plan.typed, *untyped]
        columns: dict[str, str | None] = {name: kind for name, kind in plan.typed.items() if statement.reads(name)}
        read = [name for name in untyped if statement.reads(name)]
        columns |= dict.fromkeys(read)
        target = self._new_name()
        stored = "".join(f", {named(name)} {_TYPES[kind] if kind else 'VARCHAR'}" for name, kind in columns.items())
        self.database.execute(f"CREATE TABLE {target} (_gateway VARCHAR, _row VARCHAR, _arrival BIGINT{stored})")
        self.database.execute("CREATE OR REPLACE TABLE touched AS SELECT DISTINCT _gateway, _row FROM pieces")
        for base in plan.parts.bases:
            self._load_base(plan, base, target, columns, () if read else wanted.predicates)
        query, parameters = visible_rows(columns)
        self.database.execute(f"INSERT INTO {target} BY NAME {query}", parameters)
        return self._with_kinds(target, read) if read else target

    def _untyped(self, plan: StatePlan) -> list[str]:
        """The columns that have no type in the lake's table."""
        pieces = "SELECT DISTINCT unnest(map_keys(columns)) FROM pieces"
        names = {name for (name,) in self.database.execute(pieces).fetchall()}
        if plan.table is not None:
            snapshots = {base.snapshot for base in plan.parts.bases}
            names = names.union(*(cell_names(plan.table, snapshot) for snapshot in snapshots))
        return plan.untyped(names)

    def _with_kinds(self, rows: str, untyped: Sequence[str]) -> str:
        """A view of rows whose columns without a type have the one that their JSON texts fit.

        Columns of which no row has a value are left out.
        """
        found = {
            name: self.database.execute(
                f"SELECT {KIND} FROM (SELECT {named(name)} AS value FROM {rows}) WHERE value IS NOT NULL "
                "HAVING count(*) > 0"
            ).fetchone()
            for name in untyped
        }
        kinds = {name: kind[0] for name, kind in found.items() if kind is not None}
        typed = "".join(f", {typed_value(kind, named(name))} AS {named(name)}" for name, kind in kinds.items())
        rest = f"* EXCLUDE ({', '.join(map(named, untyped))})"
        view = self._new_name()
        self.database.execute(f"CREATE VIEW {view} AS SELECT {rest}{typed} FROM {_OWN}.main.{rows}")
        return view

    def _load_pieces(self, plan: StatePlan, predicates: tuple[Predicate, ...]) -> None:
        """What is merged onto the bases, from the history and from staging: of the gateways whose table it is."""
        self.database.execute(f"CREATE OR REPLACE TABLE pieces ({PIECES})")
        above, upto, whose = plan.parts.above, plan.parts.upto, plan.whose
        if above is None:
            return
        deltas = self._plans.deltas
        if deltas is not None:
            keyed = pushed(predicates, deltas.schema(), {"_gateway": "gateway", "_row": "row_id"})
            mine = holds("gateway", "not in" if whose.others else "in", set(whose.names)) if whose.names else both()
            bound = holds("arrival", "<=", upto) if upto is not None else both()
            filters = both(holds("table_name", "=", plan.name), _above(above), bound, keyed, mine)
            scan_into(self.database, "pieces", deltas, _PIECES_OF_DELTAS, filters, select=OF_DELTAS)
        where, values = ["table_name = ?"], list[object]([plan.name])
        if upto is not None:
            where.append("arrival <= ?")
            values.append(upto)
        if whose.names:
            where.append(f"{'NOT ' * whose.others}list_contains(?, gateway)")
            values.append(sorted(whose.names))
        self.database.execute(f"INSERT INTO pieces {OF_DELTAS} FROM waiting WHERE {' AND '.join(where)}", values)

    def _load_base(
        self,
        plan: StatePlan,
        base: Base,
        target: str,
        columns: Mapping[str, str | None],
        predicates: tuple[Predicate, ...],
    ) -> None:
        """Rows of a snapshot: those that nothing is merged onto as they are, the others as pieces.

        Values of columns that the snapshot has no type for are read from its cells.
        """
        state = plan.table
        assert state is not None
        there = plan.fields_of(base.snapshot)
        mine = holds("_gateway", "=", base.gateway) if base.gateway is not None else ice.AlwaysTrue()
        as_stored = [each for each in predicates if each.column.lower() in {name.lower() for name in {*there, *KEYS}}]
        plain = both(mine, holds("_gone", "=", False), pushed(as_stored, state.schema()))
        stored = [name for name in columns if name in there]
        of_cells = {f"column{place}": name for place, name in enumerate(columns) if name not in there}
        texts = {name: f"_cells[${parameter}].value" for parameter, name in of_cells.items()}
        read_from_cells = "".join(
            f", {typed_value(kind, texts[name]) if (kind := columns[name]) else texts[name]} AS {named(name)}"
            for name in of_cells.values()
        )
        values = {parameter: name for parameter, name in of_cells.items() if columns[name] != "null"}
        scan_into(
            self.database,
            f"{target} BY NAME",
            state,
            [*KEYS, *stored, *(["_cells"] if of_cells else [])],
            plain,
            snapshot=base.snapshot,
            select=f"SELECT {', '.join(map(named, [*KEYS, *stored]))}{read_from_cells}",
            where="NOT EXISTS (FROM touched WHERE touched._gateway = scanned._gateway AND touched._row = scanned._row)",
            values=values,
        )
        touched = [row for (row,) in self.database.execute("SELECT DISTINCT _row FROM touched").fetchall()]
        if touched:
            few = holds("_row", "in", set(touched)) if len(touched) <= _FEW else ice.AlwaysTrue()
            self.database.execute("DROP TABLE IF EXISTS held")
            scan_into(
                self.database,
                "held",
                state,
                _PIECES_OF_STATE,
                both(mine, few),
                snapshot=base.snapshot,
                where="EXISTS (FROM touched WHERE touched._gateway = scanned._gateway AND touched._row = scanned._row)",
                create=True,
            )
            self.database.execute(f"INSERT INTO pieces {OF_STATE}")

    def _drop_flushed(self, deltas: Table | None) -> None:
        """Forget of what waited whatever has reached the lake since it was read."""
        span = self.database.execute(
            "SELECT min(arrival), max(arrival), list(DISTINCT gateway) FROM waiting"
        ).fetchone()
        if deltas is None or span is None or span[0] is None:
            return
        low, high, gateways = span
        self.database.execute("CREATE OR REPLACE TABLE flushed (" + _PLACE_COLUMNS + ")")
        filters = both(
            holds("arrival", ">=", low),
            holds("arrival", "<=", high),
            either(holds("gateway", "=", gateway) for gateway in gateways),
        )
        scan_into(self.database, "flushed BY NAME", deltas, _PLACE, filters)
        self.database.execute("DELETE FROM waiting USING flushed WHERE " + _SAME_PLACE)

    def _new_name(self) -> str:
        self._made += 1
        return f"made_{self._made}"

    def _count(self, table: str) -> int:
        counted = self.database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(counted[0]) if counted else 0


def _above(marks: Mapping[str, int]) -> BooleanExpression:
    """Deltas above the marks of their gateways; all of gateways that have none."""
    above = [both(holds("gateway", "=", gateway), holds("arrival", ">", mark)) for gateway, mark in marks.items()]
    others = holds("gateway", "not in", set(marks)) if marks else ice.AlwaysTrue()
    return either([*above, others])


_PLACE_COLUMNS = "gateway VARCHAR, shard VARCHAR, epoch BIGINT, seq BIGINT, ordinal INTEGER"
_SAME_PLACE = " AND ".join(f"waiting.{name} = flushed.{name}" for name in _PLACE)
