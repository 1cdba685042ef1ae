"""The demo's verification: the lake and the clients compared with the truth, row by row and column by column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from examples.flights.replica import Replica
from examples.flights.schemas import COLUMNS
from examples.flights.truth import Truth

EXPECTED = {
    "string": "case json_type(value::json) when 'VARCHAR' then value::json ->> '$' end",
    "number": "try_cast(value as double)",
    "boolean": "try_cast(value as boolean)",
    "json": "nullif(value, 'null')",
}
"""Schema type → the typed value of a cell's JSON text."""

_ROWS = """
select count(*)
from (select row_id, tombstone, inserted, visible from {name}_rows where tbl = '{table}') as truth
full join (select _row as row_id, _tombstone, _inserted, not _gone as visible from lake) as lake using (row_id)
where truth.visible is distinct from lake.visible
   or truth.tombstone.hlc is distinct from lake._tombstone.hlc
   or truth.tombstone.client is distinct from lake._tombstone.client_id
   or truth.inserted.hlc is distinct from lake._inserted.hlc
   or truth.inserted.client is distinct from lake._inserted.client_id
"""

_CELLS = """
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

_COLUMN = """
select count(*)
from (
    select row_id, {expected} as expected
    from {name}_rows left join (select * from {name}_cells where col = '{column}') as cell using (tbl, row_id)
    where tbl = '{table}'
) as truth
full join (select _row as row_id, "{column}" as found from lake) as lake using (row_id)
where expected is distinct from found
"""


def state_mismatches(truth: Truth, name: str, table: str, state: pa.Table) -> int:
    """Return how many rows, cells and typed values of a state table differ from the truth's state `name`."""
    truth.database.register("lake", state)
    try:
        queries = [_ROWS.format(name=name, table=table), _CELLS.format(name=name, table=table)]
        for column, kind in COLUMNS[table].items():
            queries.append(_COLUMN.format(name=name, table=table, column=column, expected=EXPECTED[kind]))
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

    A carrier sees its own flights, an airport (None) sees no flights, and everyone sees the reference tables. A flight
    that only has an airport's values, after a cancellation with a slow clock, belongs to no carrier.
    """
    place = list(COLUMNS["flights"]).index("carrier")
    wrong = 0
    for table, rows in expected.items():
        found = replica.rows(table)
        seen = rows
        if table == "flights":
            seen = {key: row for key, row in rows.items() if carrier is not None and row[place] == carrier}
        wrong += sum(1 for key in seen.keys() | found.keys() if seen.get(key) != found.get(key))
    return wrong


def _visible_rows(
    database: duckdb.DuckDBPyConnection, name: str, table: str, columns: Mapping[str, str]
) -> dict[str, tuple[Any, ...]]:
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
    [(number,)] = database.execute(query).fetchall()
    return int(number)
