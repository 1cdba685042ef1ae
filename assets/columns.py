"""Describes the columns of the lake's tables and where their values come from, for Dagster's asset pages.

The assets of synced tables, of the history `deltas` and of what follows it call this module once, when they are
created. A delta is a change of some columns of one row. The history has every delta that gateways accepted; a state
table has the current rows of one synced table, merged from the deltas. The tables here are texts for people: the real
schemas are in `lakehouse.table_definitions`.
"""

import dagster as dg

from lakehouse.table_definitions import SPARK_TYPES
from lakesync.model.schema import Column, TableSchema

_STAMP = "struct<hlc, client_id>"
"""Type of a stamp: the writer's clock and client id, by which writes are ordered."""
_HISTORY = (  # name, type and description of each column
    ("gateway", "string", "the tenant whose delta it is"),
    ("shard", "string", "the staging store that it was pushed to; `main` where tables are not sharded"),
    ("epoch", "bigint", "when that store was created; a rebuilt one has a greater number"),
    ("batch_id", "string", "the flush that wrote it"),
    ("seq", "bigint", "number of its push in that store"),
    ("ordinal", "int", "its position in its push"),
    (
        "arrival",
        "bigint",
        "the gateway's clock at its commit: wall ms << 16, plus a counter; cursors and marks are arrivals",
    ),
    ("day", "date", "UTC day of the arrival"),
    ("table_name", "string", "the synced table"),
    ("row_id", "string", "the row in it"),
    ("op", "string", "INSERT, UPDATE or DELETE"),
    ("client_id", "string", "who wrote it"),
    ("hlc", "bigint", "the writer's hybrid logical clock; with the client id its stamp"),
    ("delta_id", "string", "SHA-256 of its content"),
    ("width", "int", "number of its columns when it was pushed"),
    ("columns", "map<string, string>", "each column's value as canonical JSON; empty for a DELETE"),
)
_EVERY_STATE_TABLE = (  # name, type and description of each column that every state table has, before its own ones
    ("_gateway", "string", "the tenant whose row it is"),
    ("_row", "string", "the row's id"),
    ("_cells", "map<string, struct>", "each live column with its stamp, delta id and JSON text, whatever its type"),
    ("_tombstone", _STAMP, "the newest deletion"),
    ("_inserted", _STAMP, "the newest INSERT above the tombstone"),
    ("_gone", "boolean", "the row is deleted; it is kept for its tombstone"),
    ("_arrival", "bigint", "the newest arrival merged into the row"),
)


def client_columns(schema: TableSchema) -> dg.TableSchema:
    """Return the columns of a synced table in clients' databases, as registered."""
    return dg.TableSchema(
        [dg.TableColumn(column.name, str(column.type), _description(schema, column)) for column in schema.columns]
    )


def delta_columns() -> dg.TableSchema:
    """Return the columns of the history."""
    return dg.TableSchema([dg.TableColumn(*column) for column in _HISTORY])


def followed_columns() -> dg.TableSchema:
    """Return the columns of deltas that a destination, or the target of a flow or migration, stores."""
    kept = {"gateway", "arrival", "table_name", "row_id", "op", "client_id", "hlc", "delta_id", "columns"}
    return dg.TableSchema([dg.TableColumn(*column) for column in _HISTORY if column[0] in kept])


def state_columns(schema: TableSchema) -> dg.TableSchema:
    """Return the columns of a state table: the system columns, then the typed ones."""
    system_columns = [dg.TableColumn(*column) for column in _EVERY_STATE_TABLE]
    typed = [
        dg.TableColumn(column.name, SPARK_TYPES[column.type], _description(schema, column)) for column in schema.columns
    ]
    return dg.TableSchema([*system_columns, *typed])


def history_lineage() -> dg.MarkdownMetadataValue:
    """Return the source of each column of the history, as a Markdown table."""
    return dg.MetadataValue.md(
        "One row for each acknowledged delta of `staging/log`, decoded from the body of its push.\n\n"
        "| column | from |\n|---|---|\n"
        "| `gateway`, `shard`, `epoch`, `seq`, `arrival` | the log row |\n"
        "| `batch_id` | the flush |\n"
        "| `day` | `arrival`, as a UTC day |\n"
        "| `ordinal` | the delta's position in the push |\n"
        "| all others | the delta, as the client pushed it |\n"
    )


def state_lineage(schema: TableSchema) -> dg.MarkdownMetadataValue:
    """Return the source of each column of a state table, as a Markdown table."""
    table = schema.table
    typed = "".join(
        f"| `{column.name}` | `clients/{table}.{column.name}` → `deltas.columns['{column.name}']` → "
        f"`_cells['{column.name}'].value` as {SPARK_TYPES[column.type]} |\n"
        for column in schema.columns
    )
    return dg.MetadataValue.md(
        f"The merge of `deltas` where `table_name = '{table}'`, by gateway and row.\n\n"
        "| column | from |\n|---|---|\n"
        f"{typed}"
        "| `_cells` | each column's greatest `(hlc, client_id)` above the tombstone |\n"
        "| `_tombstone`, `_inserted` | the greatest stamp of a DELETE, of an INSERT |\n"
        "| `_arrival` | the greatest `deltas.arrival` |\n"
    )


def _description(schema: TableSchema, column: Column) -> str | None:
    """Describe a column's role in the schema (primary key, external id, reference); None if it has none."""
    parts = []
    if column.name in (schema.primary_key or ()):
        parts.append("part of the primary key")
    if column.name == schema.external_id_column:
        parts.append("the row's id in the external system")
    if column.references is not None:
        parts.append(f"refers to {column.references}")
    return "; ".join(parts) or None
