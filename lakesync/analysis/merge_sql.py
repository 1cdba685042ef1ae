"""The merge of deltas into rows, as SQL of DuckDB. `lakesync.analysis.query` runs it.

A *delta* is a change of one row by a client. A *state table* has the current rows of a synced table: for each column a
*cell*, the value with its stamp. A *gateway* is one app's stream of changes. A *stamp* is an hlc, the client's
timestamp, and the client's id; of all values of a column the one with the greatest stamp is current. The lake's
*history* has all deltas.

Rows are merged from *fragments*, the rows of a table with the columns of `FRAGMENTS`. A fragment is a delta of the
history, or a part of a row of a state table: one of its cells, or the stamps of its newest DELETE (tombstone) and
INSERT. Any order, grouping and repetition of fragments gives the same rows.

This is a second implementation of `lakesync.model.merge`, for a query that needs no Spark;
`docs/decisions/09-duckdb-for-query.md` says why. `tests/property/test_duckdb_merge.py` compares both, and
`tests/integration/lakehouse/test_query.py` compares the result with Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping

FRAGMENTS = (
    "_gateway VARCHAR, _row VARCHAR, _arrival BIGINT, hlc BIGINT, client_id VARCHAR, delta_id VARCHAR, "
    "columns MAP(VARCHAR, VARCHAR), tombstone STRUCT(hlc BIGINT, client_id VARCHAR), "
    "inserted STRUCT(hlc BIGINT, client_id VARCHAR)"
)
"""The columns of the table `fragments`, as DDL. `_arrival` is the gateway's timestamp of the push with the fragment."""

DELTA_FRAGMENTS = """
SELECT gateway, row_id, arrival, hlc, client_id, delta_id,
    CASE WHEN op <> 'DELETE' THEN columns END,
    CASE WHEN op = 'DELETE' THEN {'hlc': hlc, 'client_id': client_id} END,
    CASE WHEN op = 'INSERT' THEN {'hlc': hlc, 'client_id': client_id} END
"""
"""The SELECT clause that turns rows of the history into fragments."""

STATE_FRAGMENTS = """
SELECT _gateway, _row, _arrival, NULL, NULL, NULL, NULL, _tombstone, _inserted FROM state_rows
UNION ALL
SELECT _gateway, _row, _arrival, cell.value.hlc, cell.value.client_id, cell.value.delta_id,
    MAP {cell.key: cell.value.value}, NULL, NULL
FROM (SELECT _gateway, _row, _arrival, unnest(map_entries(_cells)) AS cell FROM state_rows)
"""
"""The query that turns rows of a state table, in the table `state_rows`, into fragments."""

_ROWS = """
WITH newest AS (
    SELECT _gateway, _row, max(_arrival) AS _arrival, max(tombstone) AS tombstone, max(inserted) AS inserted
    FROM fragments GROUP BY ALL
), cells AS (
    SELECT _gateway, _row, cell.key AS name, cell.value AS value, hlc, client_id, delta_id
    FROM (SELECT *, unnest(map_entries(columns)) AS cell FROM fragments)
), best AS (
    SELECT _gateway, _row, name,
        max({'hlc': hlc, 'client_id': client_id, 'value': value, 'delta_id': delta_id}) AS cell
    FROM cells GROUP BY ALL
), alive AS (
    SELECT best.* FROM best JOIN newest USING (_gateway, _row)
    WHERE tombstone IS NULL OR {'hlc': cell.hlc, 'client_id': cell.client_id} > tombstone
), gathered AS (
    SELECT _gateway, _row, map_from_entries(list({'k': name, 'v': cell.value})) AS texts FROM alive GROUP BY ALL
)
SELECT _gateway, _row, _arrival%s
FROM newest LEFT JOIN gathered USING (_gateway, _row)
WHERE texts IS NOT NULL OR (inserted IS NOT NULL AND (tombstone IS NULL OR inserted > tombstone))
"""
"""The query for the visible rows. Its steps: a row's greatest arrival, tombstone and INSERT stamp (`newest`); all
cells; the cell with the greatest stamp of each column, and of equal stamps the greater value (`best`); those above
the tombstone (`alive`); and these as a map."""

_TYPED = {
    "string": """CASE WHEN {0} LIKE '"%' THEN CAST({0} AS JSON) ->> '$' END""",
    "number": "CASE WHEN {0} >= '-' AND {0} < ':' AND isfinite(TRY_CAST({0} AS DOUBLE)) "
    "THEN TRY_CAST({0} AS DOUBLE) END",
    "boolean": "CASE {0} WHEN 'true' THEN true WHEN 'false' THEN false END",
    "json": "CASE WHEN {0} <> 'null' THEN {0} END",
    "null": "CAST(NULL AS VARCHAR)",
}
"""Schema type → SQL that converts a value's JSON text to that of the typed column, as `lakehouse.tables.typed_columns`.

A second implementation, because it takes less than half of the processor time of passing numbers, booleans and JSON
through Arrow and back. `tests/property/test_typed_columns.py` compares both.
"""


def quoted(identifier: str) -> str:
    """Return an identifier quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def typed_value(kind: str | None, text: str) -> str:
    """Return SQL for the typed value of a column.

    Args:
        kind: the column's schema type; None to return the JSON text.
        text: SQL for the value's JSON text.
    """
    return text if kind is None else _TYPED[kind].format(text)


def visible_rows(columns: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    """Return the query over `fragments` for every visible row: `_gateway`, `_row`, `_arrival` and the columns.

    A row is visible if it has a cell above its tombstone, or was inserted after it.

    Args:
        columns: name → schema type. With None instead of a type, the query returns the values' JSON texts.

    Returns:
        The query, and its parameters by name.
    """
    texts = {name: f"texts[$column{index}]" for index, name in enumerate(columns)}
    values = {name: typed_value(kind, texts[name]) for name, kind in columns.items()}
    selected = "".join(f", {value} AS {quoted(name)}" for name, value in values.items())
    # DuckDB rejects parameters that the query does not name, and a column of type null names none.
    parameters = {f"column{index}": name for index, name in enumerate(columns) if columns[name] != "null"}
    return _ROWS % selected, parameters
