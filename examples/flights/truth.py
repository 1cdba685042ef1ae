"""The truth: the expected result, computed from the journal of acknowledged pushes, and comparisons with it.

`Demo` (`demo.py`) compares the lake's tables and the clients' rows with the truth. It is computed with SQL window
functions in DuckDB, and shares no code with LakeSync's merge. The *stamp* of a write is `(hlc, client)`, where hlc is
the time by the client's clock. The value of a cell (a column of a row) with the greatest stamp wins; of those with
equal stamps, the one with the greatest text. A row's *tombstone* is the greatest stamp of its DELETEs, its *inserted*
that of its INSERTs. A value is live if its stamp is greater than the tombstone. A row is visible while it has a live
value, or an INSERT with a greater stamp than the tombstone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from examples.flights.client import Journal, Replica
from examples.flights.data import COLUMNS

_LOAD = """
create or replace table journal as
select line.step, line."order" as ord, delta.op, delta."table" as tbl, delta."rowId" as row_id,
       delta."clientId" as client, delta.hlc::bigint as hlc, delta."deltaId" as delta_id, delta.columns as columns
from read_json($files, format = 'newline_delimited', maximum_object_size = 67108864, columns = {
    'order': 'bigint', 'step': 'integer', 'day': 'varchar', 'server_hlc': 'varchar',
    'push': 'struct(deltas struct(op varchar, "table" varchar, "rowId" varchar, "clientId" varchar, hlc varchar,
                                  "deltaId" varchar, columns struct("column" varchar, value json)[])[])'
}) as line, unnest(line.push.deltas) as pushed(delta)
"""
"""Reads the journal's files into the table `journal`, a row for each delta."""

_CELLS = """
create or replace table cells as
select step, ord, tbl, row_id, hlc, client, delta_id, cell.column as col,
       coalesce(cell.value::varchar, 'null') as value -- a JSON null is read as SQL's
from (select step, ord, tbl, row_id, hlc, client, delta_id, unnest(columns) as cell from journal)
"""
"""Creates the table `cells`, a row for each column value of each delta."""

_ROWS = """
create or replace table {name}_rows as
with stamps as (
    select tbl, row_id,
           max({{'hlc': hlc, 'client': client}}) filter (op = 'DELETE') as tombstone,
           max({{'hlc': hlc, 'client': client}}) filter (op = 'INSERT') as inserted
    from journal where step <= {step} group by all
)
select tbl, row_id, tombstone,
       case when tombstone is null or inserted > tombstone then inserted end as inserted
from stamps
"""
"""Creates `NAME_rows` with each row's greatest DELETE and INSERT."""

_LIVE = """
create or replace table {name}_cells as
with winners as (
    select tbl, row_id, col,
           max({{'hlc': hlc, 'client': client, 'value': value, 'delta_id': delta_id}}) as best
    from cells where step <= {step} group by all
)
select tbl, row_id, col, best.hlc as hlc, best.client as client, best.delta_id as delta_id, best.value as value
from winners join {name}_rows using (tbl, row_id)
where tombstone is null or {{'hlc': best.hlc, 'client': best.client}} > tombstone
"""
"""Creates `NAME_cells` with the greatest value of each column, if it is above the row's tombstone."""

_VISIBLE = """
create or replace table {name}_rows as
select {name}_rows.*, inserted is not null or alive is not null as visible
from {name}_rows
left join (select distinct tbl, row_id, true as alive from {name}_cells) using (tbl, row_id)
"""
"""Adds to `NAME_rows` whether the row is visible."""

_COUNTS = """
with winners as (
    select tbl, row_id, col, max({'hlc': hlc, 'client': client}) as best, count(distinct client) as writers
    from cells group by all
), lost as (
    select distinct delta_id
    from cells join winners using (tbl, row_id, col)
    where client <> best.client
), behind as (
    select hlc < max(hlc) over (partition by tbl, row_id order by step groups between unbounded preceding
                                and 1 preceding) as late
    from journal
), crossing as (
    select distinct tbl, row_id, col
    from cells join (select tbl, row_id, col, client, hlc, min(step) as step from cells group by all) as other
         using (tbl, row_id, col)
    where cells.client <> other.client and cells.hlc < other.hlc and cells.step > other.step
)
select (select count(*) from journal), (select count(distinct delta_id) from journal),
       (select count(distinct client) from journal), (select count(*) from winners),
       (select count(*) from winners where writers > 1), (select count(*) from crossing),
       (select count(*) from lost), (select count(*) from behind where late)
"""
"""Returns the fields of `Counts`."""


@dataclass(frozen=True)
class Counts:
    """What happened, according to the journal."""

    deltas: int
    """Acknowledged deltas."""
    distinct: int
    """Distinct delta ids."""
    clients: int
    """Clients that pushed."""
    cells: int
    """Distinct (row, column)."""
    conflicts: int
    """Cells written by two or more clients."""
    crossed: int
    """Cells of which a client's greater stamp arrived before another client's smaller one."""
    losers: int
    """Deltas of which at least one value lost against another client's."""
    late: int
    """Deltas that arrived at a later step than a greater stamp of the same row."""


class Truth:
    """The journal in an in-memory database, and the resulting states.

    A state NAME is two tables: `NAME_rows` (tbl, row_id, tombstone, inserted, visible) and `NAME_cells` (tbl, row_id,
    col, hlc, client, delta_id, value), which has the live values as JSON text.
    """

    def __init__(self, journal: Journal) -> None:
        """Load the journal; `reduce` computes states from it."""
        self.database = duckdb.connect()
        self.database.execute(_LOAD, {"files": journal.pattern})
        self.database.execute(_CELLS)

    def reduce(self, name: str, last_step: int) -> None:
        """Compute a state: the rows after all pushes up to a step.

        Args:
            name: the state's name, an identifier.
            last_step: the last step whose pushes are included.
        """
        for statement in (_ROWS, _LIVE, _VISIBLE):
            self.database.execute(statement.format(name=name, step=int(last_step)))

    @cached_property
    def counts(self) -> Counts:
        """Return the counts."""
        [row] = self.database.execute(_COUNTS).fetchall()
        return Counts(*row)

    def visible(self, name: str) -> int:
        """Return the number of visible rows of a state."""
        [(rows,)] = self.database.execute(f"select count(*) from {name}_rows where visible").fetchall()
        return int(rows)


EXPECTED = {
    "string": "case json_type(value::json) when 'VARCHAR' then value::json ->> '$' end",
    "number": "try_cast(value as double)",
    "boolean": "try_cast(value as boolean)",
    "json": "nullif(value, 'null')",
}
"""Schema type → the typed value of a cell's JSON text."""

_ROW_MISMATCHES = """
select count(*)
from (select row_id, tombstone, inserted, visible from {name}_rows where tbl = '{table}') as truth
full join (select _row as row_id, _tombstone, _inserted, not _gone as visible from lake) as lake using (row_id)
where truth.visible is distinct from lake.visible
   or truth.tombstone.hlc is distinct from lake._tombstone.hlc
   or truth.tombstone.client is distinct from lake._tombstone.client_id
   or truth.inserted.hlc is distinct from lake._inserted.hlc
   or truth.inserted.client is distinct from lake._inserted.client_id
"""
"""Counts the rows of `lake` whose visibility, tombstone or INSERT differs."""

_CELL_MISMATCHES = """
with found as (
    select row_id, cell.key as col, cell.value.hlc, cell.value.client_id as client, cell.value.delta_id,
           cell.value.value
    from (select _row as row_id, unnest(map_entries(_cells)) as cell from lake)
), truth as (
    select row_id, col, hlc, client, delta_id, value from {name}_cells where tbl = '{table}'
)
select (select count(*) from (from found except all from truth))
     + (select count(*) from (from truth except all from found))
"""
"""Counts the cells that only the lake or only the truth has."""

_COLUMN_MISMATCHES = """
select count(*)
from (
    select row_id, {expected} as expected
    from {name}_rows left join (select * from {name}_cells where col = '{column}') as cell using (tbl, row_id)
    where tbl = '{table}'
) as truth
full join (select _row as row_id, "{column}" as found from lake) as lake using (row_id)
where expected is distinct from found
"""
"""Counts the rows whose typed column differs from its cell's value."""


def state_mismatches(truth: Truth, name: str, table: str, state: pa.Table) -> int:
    """Return how many rows, cells and typed values of a table in the lake differ from the truth.

    Args:
        truth: the truth.
        name: the state of the truth, as `Truth.reduce` named it.
        table: the table's name.
        state: the rows of the lake's state table.
    """
    truth.database.register("lake", state)
    try:
        queries = [_ROW_MISMATCHES.format(name=name, table=table), _CELL_MISMATCHES.format(name=name, table=table)]
        for column, kind in COLUMNS[table].items():
            queries.append(_COLUMN_MISMATCHES.format(name=name, table=table, column=column, expected=EXPECTED[kind]))
        return sum(_number(truth.database, query) for query in queries)
    finally:
        truth.database.unregister("lake")


Rows = dict[str, dict[str, tuple[Any, ...]]]
"""Table → row id → values in the schema's order."""


def visible_rows(truth: Truth, name: str) -> Rows:
    """Return every visible row of the truth's state `name`."""
    return {table: _visible_rows(truth.database, name, table, columns) for table, columns in COLUMNS.items()}


def replica_mismatches(expected: Rows, carrier: str | None, replica: Replica) -> int:
    """Return how many rows of a client's database are surplus, missing or different from what the rules allow.

    A carrier sees its own flights, an airport sees no flights, and everyone sees the reference tables. A flight that
    only has an airport's values, after a cancellation by a slow clock, belongs to no carrier.

    Args:
        expected: the truth's visible rows.
        carrier: the code of the client's carrier; None for an airport's client.
        replica: the client's database.
    """
    index = list(COLUMNS["flights"]).index("carrier")
    wrong = 0
    for table, rows in expected.items():
        found = replica.rows(table)
        seen = rows
        if table == "flights":
            seen = {key: row for key, row in rows.items() if carrier is not None and row[index] == carrier}
        wrong += sum(1 for key in seen.keys() | found.keys() if seen.get(key) != found.get(key))
    return wrong


def _visible_rows(
    database: duckdb.DuckDBPyConnection, name: str, table: str, columns: Mapping[str, str]
) -> dict[str, tuple[Any, ...]]:
    """Return the visible rows of one table of a state: row id → typed values in the schema's order."""
    values = ", ".join(
        f"max({EXPECTED[kind]}) filter (col = '{column}') as \"{column}\"" for column, kind in columns.items()
    )
    rows = database.execute(
        f"""
        select row_id, {values} from {name}_rows left join {name}_cells using (tbl, row_id)
        where tbl = '{table}' and visible group by row_id
        """
    ).fetchall()
    return {row[0]: tuple(row[1:]) for row in rows}


def _number(database: duckdb.DuckDBPyConnection, query: str) -> int:
    """Return the one number that a query returns."""
    [(number,)] = database.execute(query).fetchall()
    return int(number)
