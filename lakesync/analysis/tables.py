"""The lake's tables in DuckDB: state tables with their visible rows, and the history as `deltas`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
from pyiceberg import expressions as ice

from lakesync.analysis import sources
from lakesync.analysis.moments import AsOf, shown
from lakesync.analysis.reduction import KINDS, OF_DELTAS, OF_STATE, PIECES, named, visible_rows
from lakesync.analysis.scans import both, either, holds, pushed, scan_into
from lakesync.exceptions import NotFoundError
from lakesync.schema import RESERVED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyiceberg.table import Table

    from lakesync.analysis.catalogue import Lake
    from lakesync.analysis.predicate import Predicate
    from lakesync.analysis.sources import Parts
    from lakesync.analysis.statement import Named
    from lakesync.namespaces import Gateways

HISTORY = "deltas"
KEYS = ("_gateway", "_row", "_arrival")
"""Columns of every state table, beside its own."""

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
    """Makes the tables that a statement names, at one moment, in a DuckDB database of its own."""

    def __init__(self, lake: Lake, waiting: pa.Table, as_of: AsOf | None = None) -> None:
        """Args: lake: read after `waiting` was; waiting: what is not flushed yet, as `unflushed.SCHEMA`."""
        self.database = duckdb.connect()
        self.database.execute("ATTACH ':memory:' AS lake; USE lake; SET TimeZone = 'UTC'")
        self.database.execute("CREATE MACRO hlc_time(hlc) AS make_timestamp((hlc >> 16) * 1000)")
        self.database.register("waiting_now", waiting)
        self.database.execute("CREATE TABLE waiting AS FROM waiting_now")
        self._lake = lake
        self._where = lake.namespaces
        self._as_of = as_of
        self._moment: int | None = None
        """The commit time of the snapshot asked for, in ms."""
        self._made: set[str] = set()

    def make(self, wanted: Iterable[Named], identifiers: frozenset[str] | None) -> None:
        """Make every table, with the columns that the identifiers name.

        Raises:
            NotFoundError: there is no such table, or nothing of it at that moment.
        """
        namespaces = (None, self._lake.system, self._where.shared, *self._where.apart)
        mine = [each for each in wanted if each.namespace in namespaces]
        if self._as_of is not None and self._as_of.snapshot is not None:
            there = [self._lake.deltas if self._is_history(each) else self._state(each) for each in mine]
            self._moment = sources.moment_of(self._as_of.snapshot, [table for table in there if table is not None])
        for each in mine:
            make = self._make_history if self._is_history(each) else self._make_state
            table = make(each, identifiers)
            schema = each.namespace or "main"
            self.database.execute(f"CREATE SCHEMA IF NOT EXISTS {named(schema)}")
            self.database.execute(f"CREATE VIEW IF NOT EXISTS {named(schema)}.{named(each.name)} AS FROM main.{table}")

    def _is_history(self, wanted: Named) -> bool:
        return wanted.name.lower() == HISTORY and wanted.namespace in (None, self._lake.system)

    def _namespace(self, wanted: Named) -> str:
        return wanted.namespace if wanted.namespace in self._where.apart else self._where.shared

    def _state(self, wanted: Named) -> Table | None:
        called = self._where.called(self._namespace(wanted), wanted.name)
        return self._lake.state(next((name for name in self._lake.states if name.lower() == called.lower()), called))

    def _make_history(self, wanted: Named, identifiers: frozenset[str] | None) -> str:
        """The history; rows that are not flushed yet have no batch."""
        target = f"__made_{len(self._made)}"
        self._made.add(target)
        names = [column.split()[0] for column in _HISTORY.split(", ")]
        self.database.execute(f"CREATE TABLE {target} ({_HISTORY})")
        deltas = self._lake.deltas
        columns = [name for name in names if identifiers is None or name in identifiers] or ["seq"]
        upto = self._as_of.arrival if self._as_of else None
        bound = holds("arrival", "<=", upto) if upto is not None else ice.AlwaysTrue()
        if deltas is not None:
            snapshot = self._snapshot(deltas)
            if snapshot is not None:
                filters = both(pushed(wanted.predicates, deltas.schema()), bound)
                scan_into(self.database, f"{target} BY NAME", deltas, columns, filters, snapshot=snapshot)
        if self._moment is None:
            self._drop_flushed(deltas)
            self.database.execute(
                f"INSERT INTO {target} BY NAME SELECT *, CAST(hlc_time(arrival) AS DATE) AS day FROM waiting"
                + (f" WHERE arrival <= {upto}" if upto is not None else "")
            )
        self._check_begun(deltas, upto)
        return target

    def _make_state(self, wanted: Named, identifiers: frozenset[str] | None) -> str:
        state = self._state(wanted)
        name = state.name()[-1] if state is not None else wanted.name
        parts = self._parts(state)
        self._load_pieces(name, parts, wanted.predicates, self._where.within(self._namespace(wanted)))
        kinds = self._kinds(state)
        if state is None and not kinds and not self._count("pieces"):
            self._refuse(wanted)
        columns = {
            column: kind for column, kind in kinds.items() if identifiers is None or column.lower() in identifiers
        }
        target = f"__made_{len(self._made)}"
        self._made.add(target)
        typed = "".join(f", {named(column)} {_TYPES[kind]}" for column, kind in columns.items())
        self.database.execute(f"CREATE TABLE {target} (_gateway VARCHAR, _row VARCHAR, _arrival BIGINT{typed})")
        self.database.execute("CREATE OR REPLACE TABLE touched AS SELECT DISTINCT _gateway, _row FROM pieces")
        if state is not None:
            for base in parts.bases:
                self._load_base(state, base, target, list(columns), wanted.predicates)
        query, parameters = visible_rows(columns)
        self.database.execute(f"INSERT INTO {target} BY NAME {query}", parameters)
        if not parts.bases:
            self._check_begun(self._lake.deltas, parts.upto)
        return target

    def _parts(self, state: Table | None) -> Parts:
        if self._as_of is None:
            return sources.newest(state)
        if self._as_of.arrival is not None:
            return sources.as_of_arrival(state, self._as_of.arrival)
        return sources.at_snapshot(self._snapshot(state) if state is not None else None)

    def _snapshot(self, table: Table) -> int | None:
        """The snapshot of a table to read: the one that was asked for, that of its moment, or the current one."""
        if self._as_of is not None and self._as_of.snapshot is not None:
            if table.snapshot_by_id(self._as_of.snapshot) is not None:
                return self._as_of.snapshot
            then = table.snapshot_as_of_timestamp(self._moment or 0)
            return then.snapshot_id if then else None
        current = table.current_snapshot()
        return current.snapshot_id if current else None

    def _load_pieces(self, name: str, parts: Parts, predicates: tuple[Predicate, ...], whose: Gateways) -> None:
        """What is merged onto the bases, from the history and from staging: of the gateways whose table it is."""
        self.database.execute(f"CREATE OR REPLACE TABLE pieces ({PIECES})")
        deltas = self._lake.deltas
        if deltas is not None and parts.deltas is not None:
            keyed = pushed(predicates, deltas.schema(), {"_gateway": "gateway", "_row": "row_id"})
            mine = holds("gateway", "not in" if whose.others else "in", set(whose.names)) if whose.names else both()
            filters = both(holds("table_name", "=", name), parts.deltas, keyed, mine)
            scan_into(self.database, "pieces", deltas, _PIECES_OF_DELTAS, filters, select=OF_DELTAS)
        if parts.unflushed:
            where, values = ["table_name = ?"], list[object]([name])
            if parts.upto is not None:
                where.append("arrival <= ?")
                values.append(parts.upto)
            if whose.names:
                where.append(f"{'NOT ' * whose.others}list_contains(?, gateway)")
                values.append(sorted(whose.names))
            self.database.execute(f"INSERT INTO pieces {OF_DELTAS} FROM waiting WHERE {' AND '.join(where)}", values)

    def _kinds(self, state: Table | None) -> dict[str, str]:
        """A table's columns and their schema types; guessed for those that the lake's table lacks."""
        guessed = dict(self.database.execute(KINDS).fetchall())
        fields = state.schema().fields if state is not None else ()
        known = {field.name: str(field.doc) for field in fields if field.name not in RESERVED_COLUMNS}
        return known | {name: kind for name, kind in sorted(guessed.items()) if name not in known}

    def _load_base(
        self, state: Table, base: sources.Base, target: str, columns: list[str], predicates: tuple[Predicate, ...]
    ) -> None:
        """Rows of a snapshot: those that nothing is merged onto as they are, the others as pieces."""
        snapshot = state.snapshot_by_id(base.snapshot)
        assert snapshot is not None
        schema = state.scan(snapshot_id=base.snapshot).projection()
        there = {field.name for field in schema.fields}
        mine = holds("_gateway", "=", base.gateway) if base.gateway is not None else ice.AlwaysTrue()
        plain = both(mine, holds("_gone", "=", False), pushed(predicates, schema))
        read = [*KEYS, *(column for column in columns if column in there)]
        untouched = f"SELECT {', '.join(map(named, read))}"
        scan_into(
            self.database,
            f"{target} BY NAME",
            state,
            read,
            plain,
            snapshot=base.snapshot,
            select=untouched,
            where="NOT EXISTS (FROM touched WHERE touched._gateway = scanned._gateway AND touched._row = scanned._row)",
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

    def _check_begun(self, deltas: Table | None, upto: int | None) -> None:
        """Raises: NotFoundError: nothing at all had arrived by then."""
        if upto is None:
            return
        first = self._first_arrival(deltas)
        if first is not None and upto < first:
            raise NotFoundError(
                f"nothing had arrived by {shown(upto)}: the first delta came at {shown(first)}; ask for that or later"
            )

    def _first_arrival(self, deltas: Table | None) -> int | None:
        found = self.database.execute("SELECT min(arrival) FROM waiting").fetchone()
        firsts = [found[0]] if found and found[0] is not None else []
        if deltas is not None and deltas.current_snapshot() is not None:
            field = deltas.schema().find_field("arrival")
            for task in deltas.scan().plan_files():
                bound = (task.file.lower_bounds or {}).get(field.field_id)
                if bound is not None:
                    firsts.append(int.from_bytes(bound, "little", signed=True))
        return min(firsts, default=None)

    def _count(self, table: str) -> int:
        counted = self.database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(counted[0]) if counted else 0

    def _refuse(self, wanted: Named) -> None:
        waiting = self.database.execute("SELECT DISTINCT table_name FROM waiting").fetchall()
        known = sorted({HISTORY, *self._lake.states, *(name for (name,) in waiting)})
        raise NotFoundError(f"there is no table {wanted.shown!r} in the lake; there are {', '.join(known)}")


_PLACE_COLUMNS = "gateway VARCHAR, shard VARCHAR, epoch BIGINT, seq BIGINT, ordinal INTEGER"
_SAME_PLACE = " AND ".join(f"waiting.{name} = flushed.{name}" for name in _PLACE)
