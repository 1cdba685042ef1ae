"""The merge of `lakesync.model.merge` as DuckDB queries: deltas and state rows in, state rows with typed columns out.

`pieces` has the columns of `PIECES`: deltas as they are in the history, and rows of a state table in the same form, one
piece a live cell and one for tombstone and INSERT. Any order, grouping and repetition gives the same rows.

It says again what the lake's merge says, for `lakesync query`, which answers where no Spark runs: in 1.9 s over the
rows of `scripts/demo`, on two cores, where a Spark that starts for the question answers after 11.5 s.
`tests/property/test_reduction.py` holds it to `lakesync.model.merge`, `tests/integration/test_query.py` to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

PIECES = (
    "_gateway VARCHAR, _row VARCHAR, _arrival BIGINT, hlc BIGINT, client_id VARCHAR, delta_id VARCHAR, "
    "columns MAP(VARCHAR, VARCHAR), tombstone STRUCT(hlc BIGINT, client_id VARCHAR), "
    "inserted STRUCT(hlc BIGINT, client_id VARCHAR)"
)
"""The columns of the table `pieces`, as DDL."""

OF_DELTAS = """
SELECT gateway, row_id, arrival, hlc, client_id, delta_id,
    CASE WHEN op <> 'DELETE' THEN columns END,
    CASE WHEN op = 'DELETE' THEN {'hlc': hlc, 'client_id': client_id} END,
    CASE WHEN op = 'INSERT' THEN {'hlc': hlc, 'client_id': client_id} END
"""
"""Begins a SELECT over rows of the history."""

OF_STATE = """
SELECT _gateway, _row, _arrival, NULL, NULL, NULL, NULL, _tombstone, _inserted FROM held
UNION ALL
SELECT _gateway, _row, _arrival, cell.value.hlc, cell.value.client_id, cell.value.delta_id,
    MAP {cell.key: cell.value.value}, NULL, NULL
FROM (SELECT _gateway, _row, _arrival, unnest(map_entries(_cells)) AS cell FROM held)
"""
"""Rows of a state table, called `held`, as pieces."""

_ROWS = """
WITH heads AS (
    SELECT _gateway, _row, max(_arrival) AS _arrival, max(tombstone) AS tombstone, max(inserted) AS inserted
    FROM pieces GROUP BY ALL
), cells AS (
    SELECT _gateway, _row, cell.key AS name, cell.value AS value, hlc, client_id, delta_id
    FROM (SELECT *, unnest(map_entries(columns)) AS cell FROM pieces)
), best AS (
    SELECT _gateway, _row, name,
        max({'hlc': hlc, 'client_id': client_id, 'value': value, 'delta_id': delta_id}) AS cell
    FROM cells GROUP BY ALL
), alive AS (
    SELECT best.* FROM best JOIN heads USING (_gateway, _row)
    WHERE tombstone IS NULL OR {'hlc': cell.hlc, 'client_id': cell.client_id} > tombstone
), gathered AS (
    SELECT _gateway, _row, map_from_entries(list({'k': name, 'v': cell.value})) AS texts FROM alive GROUP BY ALL
)
SELECT _gateway, _row, _arrival%s
FROM heads LEFT JOIN gathered USING (_gateway, _row)
WHERE texts IS NOT NULL OR (inserted IS NOT NULL AND (tombstone IS NULL OR inserted > tombstone))
"""

_TYPED = {
    "string": """CASE WHEN {0} LIKE '"%' THEN CAST({0} AS JSON) ->> '$' END""",
    "number": "CASE WHEN {0} >= '-' AND {0} < ':' THEN TRY_CAST({0} AS DOUBLE) END",
    "boolean": "CASE {0} WHEN 'true' THEN true WHEN 'false' THEN false END",
    "json": "CASE WHEN {0} <> 'null' THEN {0} END",
    "null": "CAST(NULL AS VARCHAR)",
}
"""Schema type → a value's JSON text as a value of the typed column, as `lakehouse.merge.typed` has it."""


def typed_value(kind: str, text: str) -> str:
    """A value of a column as SQL.

    Args:
        kind: the column's schema type.
        text: SQL for the value's JSON text.
    """
    return _TYPED[kind].format(text)


def visible_rows(columns: Mapping[str, str | None]) -> tuple[str, dict[str, str]]:
    """The query over `pieces` that gives every visible row: `_gateway`, `_row`, `_arrival` and the columns.

    Args:
        columns: name → schema type; None: its JSON text.

    Returns:
        The query, and its parameters by name.
    """
    texts = {name: f"texts[$column{place}]" for place, name in enumerate(columns)}
    values = {name: typed_value(kind, texts[name]) if kind else texts[name] for name, kind in columns.items()}
    wanted = "".join(f", {value} AS {named(name)}" for name, value in values.items())
    parameters = {f"column{place}": name for place, name in enumerate(columns) if columns[name] != "null"}
    return _ROWS % wanted, parameters


def named(identifier: str) -> str:
    """An identifier in SQL."""
    return '"' + identifier.replace('"', '""') + '"'
