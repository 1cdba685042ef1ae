"""The app's tables and their schemas: which tables can be synchronised, how to fix one, and how to adopt a column.

`SqliteClientStore` calls it when it opens a database or a schema grows. A column is adopted when it becomes
synchronised in a table that already has rows. The app's table may already have the column with values, and the gateway
may have values of it for the table's rows.

The change journal is a pair of tables per synced table, into which triggers write each row that the app writes: as it
was before (`before_table`) and as it is after (`after_table`). Their columns `there` and `here` say whether the row
existed then. `change_tracking.py` has the triggers; the next sync makes edits of the journalled rows. The table
`_lakesync_quiet` has a row while LakeSync itself writes, so that triggers do not act.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from msgspec import Raw

from lakesync.client.sqlite.change_tracking import JOURNAL_COLUMNS, NOW_MS, after_table, before_table
from lakesync.client.sqlite.sql_values import DECLARED, INVALID_ID, INVALID_VALUES, SqlValue, find_invalid_utf8, to_sql
from lakesync.model.errors import ConfigurationError, SchemaError
from lakesync.model.schema import TableSchema, check_schema
from lakesync.model.types import RowKey

_KIND_NAMES = {"virtual": "virtual table", "shadow": "shadow table of a virtual table"}
"""Kinds of `pragma_table_list` in words, where they differ."""
_WRITTEN_TABLE = re.compile(r"""\b(?:INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+["`\[]?(\w+)""", re.IGNORECASE)
"""A table that a statement of a trigger writes to."""
_STRINGS_AND_COMMENTS = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Parts of a trigger's SQL that are not searched for tables."""
_BODY = re.compile(r"\bBEGIN\b", re.IGNORECASE)
"""Begins the statements of a trigger."""
_NUMERIC = ("number", "boolean")
"""Column types whose values are numbers in SQLite."""
_GENERATED = (2, 3)
"""Values of `hidden` in `PRAGMA table_xinfo` for generated columns."""

VisibleRows = Mapping[RowKey, Mapping[str, Raw] | None]
"""Rows as the app should see them: the gateway's values with the edits."""


def check_names(schema: TableSchema, others: Iterable[str]) -> None:
    """Check that a schema's names can be used in the app's database.

    Args:
        schema: the schema to check.
        others: the names of the other synced tables.

    Raises:
        SchemaError: a name is not an identifier or is reserved, or two tables differ only in case.
    """
    check_schema(schema)
    table = schema.table
    for other in others:
        if other != table and other.lower() == table.lower():
            raise SchemaError(f"tables {other!r} and {table!r} differ only in case, which SQLite ignores: rename one")


def check_table(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Check that the app's table of this name, if it exists, can be synchronised.

    Args:
        db: the app's database.
        schema: the table's schema.

    Raises:
        ConfigurationError: the table cannot be synchronised. The message says why, and how to fix it.
    """
    table = schema.table
    limit = db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN) - JOURNAL_COLUMNS
    if len(schema.columns) > limit:
        raise ConfigurationError(
            f"the schema of table {table!r} has {len(schema.columns)} columns, and SQLite allows {limit}: split it "
            "into two tables"
        )
    kind = _kind(db, table)
    if not kind:
        return
    if kind != "table":
        raise ConfigurationError(
            f"{table!r} is a {_KIND_NAMES.get(kind, kind)} in this database, and only a table can have the triggers "
            "that track changes: synchronise a table"
        )
    columns = {name.lower(): (declared, hidden) for _, name, declared, _, _, _, hidden in _columns_of(db, table)}
    if "row_id" not in columns:
        raise ConfigurationError(
            f"table {table!r} has no column row_id: add one for the row's id, as TEXT PRIMARY KEY NOT NULL"
        )
    if not _stores_text_unchanged(columns["row_id"][0]):
        raise ConfigurationError(
            f"row_id of table {table!r} is declared {columns['row_id'][0]}, which turns text into numbers: declare it "
            "TEXT"
        )
    if not _is_unique(db, table):
        raise ConfigurationError(
            f"row_id of table {table!r} is not unique: make it the primary key, or give it a UNIQUE index, without a "
            "collation of its own"
        )
    for column in schema.columns:
        declared, hidden = columns.get(column.name.lower(), ("", 0))
        if hidden in _GENERATED:
            raise ConfigurationError(
                f"column {column.name!r} of table {table!r} is a generated column: remove it from the table's schema"
            )
        if column.type in _NUMERIC and _turns_numbers_into_text(declared):
            raise ConfigurationError(
                f"column {column.name!r} of table {table!r} is declared {declared}, which turns numbers into text, and "
                f"its schema says {column.type}: declare it {DECLARED[column.type]}"
            )


def repair_table(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Repair a recreated table as far as no value changes, for example after pandas' `to_sql(if_exists="replace")`.

    It makes `row_id` unique and declares numeric columns again. `check_table` reports what it cannot repair.

    Args:
        db: the app's database.
        schema: the table's schema.
    """
    table = schema.table
    if _kind(db, table) != "table":
        return
    columns = {name.lower(): (name, declared, hidden) for _, name, declared, _, _, _, hidden in _columns_of(db, table)}
    name, declared, _ = columns.get("row_id", ("", "", 0))
    if name and _stores_text_unchanged(declared) and not _is_unique(db, table):
        with suppress(sqlite3.IntegrityError):  # an id exists twice
            db.execute(f'CREATE UNIQUE INDEX "_lakesync_id_{table}" ON "{table}" (row_id COLLATE BINARY)')
    for column in schema.columns:
        name, declared, hidden = columns.get(column.name.lower(), ("", "", 0))
        if name and column.type in _NUMERIC and _turns_numbers_into_text(declared) and not hidden:
            with suppress(sqlite3.OperationalError):  # an index or a trigger of the app depends on the column
                _redeclare_column(db, table, name, DECLARED[column.type])


def _redeclare_column(db: sqlite3.Connection, table: str, column: str, declared: str) -> None:
    """Give a column another declared type; SQLite converts its values.

    Raises:
        sqlite3.OperationalError: something else in the file depends on the column; nothing was changed.
    """
    db.execute("SAVEPOINT _lakesync_column")
    try:
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO _lakesync_column')
        db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" {declared}')
        db.execute(f'UPDATE "{table}" SET "{column}" = _lakesync_column')
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN _lakesync_column')
    except sqlite3.OperationalError:
        db.execute("ROLLBACK TO _lakesync_column")
        raise
    finally:
        db.execute("RELEASE _lakesync_column")


def check_existing_rows(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Check that the gateway can accept every row that a table already has.

    Args:
        db: the app's database.
        schema: the table's schema.

    Raises:
        ConfigurationError: the gateway would reject a row, which the message names.
    """
    table = schema.table
    invalid = db.execute(f'SELECT row_id FROM "{table}" WHERE {INVALID_ID.format("row_id")} LIMIT 1').fetchone()
    if invalid is not None:
        raise ConfigurationError(
            f"table {table!r} has a row whose row_id is {invalid[0]!r}: change it to text of 1 to 512 characters"
        )
    for column in schema.columns:
        condition, expected = INVALID_VALUES[column.type]
        name = f't."{column.name}"'
        query = f'SELECT t.row_id, {name} FROM "{table}" t WHERE {condition.format(name)} LIMIT 1'
        invalid = db.execute(query).fetchone()
        if invalid is not None:
            raise ConfigurationError(
                f"row {invalid[0]!r} of table {table!r} has {invalid[1]!r} in column {column.name!r}, which takes "
                f"{expected}: change the value, then open the database again"
            )
    unreadable = find_invalid_utf8(db, table, list(schema.types))
    if unreadable is not None:
        raise ConfigurationError(
            f"row {unreadable[0]!r} of table {table!r} has text in column {unreadable[1]!r} that is not valid UTF-8: "
            "change the value, then open the database again"
        )


def check_triggers(db: sqlite3.Connection, tables: Collection[str]) -> None:
    """Check that no trigger of the app writes to a synced table while other clients' changes are applied.

    The client that made such a change has run the trigger already and has pushed what it wrote.

    Args:
        db: the app's database.
        tables: the synced tables.

    Raises:
        ConfigurationError: there is such a trigger; the message names the first one.
    """
    names = {table.lower() for table in tables}
    triggers = db.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, table, sql in triggers:
        body = _BODY.split(_STRINGS_AND_COMMENTS.sub(" ", sql), maxsplit=1)[-1]
        written = {found.lower() for found in _WRITTEN_TABLE.findall(body)} & names
        if table.lower() in names and written and "_lakesync_quiet" not in sql:
            raise ConfigurationError(
                f"trigger {name!r} writes into table {written.pop()!r}, also while other clients' changes are applied: "
                "give it the condition WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet)"
            )


def lost_columns(db: sqlite3.Connection, schema: TableSchema) -> list[str]:
    """Return the columns of a schema that its table does not have; all of them if the table does not exist.

    Args:
        db: the app's database.
        schema: the schema for which the table's triggers were created.
    """
    existing = {name.lower() for _, name, *_ in _columns_of(db, schema.table)}
    return [column.name for column in schema.columns if column.name.lower() not in existing]


def has_defaults(db: sqlite3.Connection, schema: TableSchema) -> bool:
    """Return whether a synced column has a DEFAULT, which SQLite writes if an INSERT omits the column.

    Args:
        db: the app's database.
        schema: the table's schema.
    """
    names = {column.name.lower() for column in schema.columns}
    columns = _columns_of(db, schema.table)
    return any(default is not None and name.lower() in names for _, name, _, _, default, *_ in columns)


def is_strict(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a table is a STRICT table.

    Args:
        db: the app's database.
        table: its name.
    """
    cursor = db.execute(
        "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", (table,)
    )
    return bool((cursor.fetchone() or (0,))[0])


def _kind(db: sqlite3.Connection, table: str) -> str:
    """Return what a name refers to: `table`, `view`, `virtual` and so on; an empty string if to nothing."""
    cursor = db.execute(
        "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", (table,)
    )
    return str((cursor.fetchone() or ("",))[0])


def _columns_of(db: sqlite3.Connection, table: str) -> list[tuple[int, str, str, int, str | None, int, int]]:
    """Return the columns of a table: number, name, declared type, NOT NULL, default, primary key, hidden."""
    return db.execute(f'PRAGMA table_xinfo("{table}")').fetchall()


def _stores_text_unchanged(declared: str) -> bool:
    """Return whether the affinity of a declared type leaves text unchanged (SQLite, "Datatypes", section 3.1)."""
    kind = declared.upper()
    if "INT" in kind:
        return False
    return not kind or kind == "ANY" or any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB"))


def _turns_numbers_into_text(declared: str) -> bool:
    """Return whether a declared type has TEXT affinity."""
    kind = declared.upper()
    return "INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT"))


def _is_unique(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a unique index has exactly the column `row_id`, compared by its bytes."""
    for _, index, unique, _, partial in db.execute(f'PRAGMA index_list("{table}")').fetchall():
        columns = db.execute(f'PRAGMA index_xinfo("{index}")').fetchall()
        keys = [(str(name).lower(), collation) for _, _, name, _, collation, is_key in columns if is_key]
        if unique and not partial and keys == [("row_id", "BINARY")]:
            return True
    return False


def added_columns(before: TableSchema | None, schema: TableSchema) -> list[str]:
    """Return the columns that a table's schema did not have before.

    Args:
        before: the schema before; None if the table was not synchronised.
        schema: the schema now.
    """
    return [name for name in schema.types if before is None or name not in before.types]


def existing_columns(db: sqlite3.Connection, schema: TableSchema, added: list[str]) -> dict[str, str]:
    """Return the added columns that the app's table already has, each with its DEFAULT as SQL.

    Args:
        db: the app's database.
        schema: the table's new schema.
        added: the result of `added_columns`.
    """
    columns = db.execute(f'PRAGMA table_info("{schema.table}")').fetchall()
    existing = {name.lower(): default for _, name, _, _, default, _ in columns}
    return {name: existing[name.lower()] or "NULL" for name in added if name.lower() in existing}


def adopt_values(
    db: sqlite3.Connection, schema: TableSchema, existing: Mapping[str, str], visible: VisibleRows
) -> None:
    """Write the app's values in existing columns into the change journal, as if they were written now.

    A column's DEFAULT is not a write: it would appear newer than what other clients wrote. Where the gateway has a
    value, the app's is discarded, because it is unknown which one is newer.

    Args:
        db: the app's database.
        schema: the table's new schema.
        existing: the result of `existing_columns`.
        visible: rows for which the gateway has values in columns that the table lacked.
    """
    table, before, after = schema.table, before_table(schema.table), after_table(schema.table)
    for name in existing:
        row_ids = [(row_id,) for (_, row_id), row in visible.items() if row is not None and name in row]
        db.executemany(f'UPDATE "{table}" SET "{name}" = NULL WHERE row_id = ?', row_ids)
    is_default = {name: f'"{name}" IS ({default})' for name, default in existing.items()}
    # Rows that are journalled already get the columns' values. A DEFAULT goes into both tables, so it is no change.
    for name, condition in is_default.items():
        for journal, where in ((before, f"{before}.there AND t.{condition}"), (after, f"{after}.here")):
            db.execute(
                f'UPDATE {journal} SET "c_{name}" = t."{name}" FROM "{table}" t '
                f"WHERE t.row_id = {journal}.row_id AND {where}"
            )
    # Other rows are added to the journal if the app has written one of the columns.
    is_written = " OR ".join(f'("{name}" IS NOT NULL AND NOT {condition})' for name, condition in is_default.items())
    source = f'FROM "{table}" WHERE ({is_written}) AND row_id NOT IN (SELECT row_id FROM {before})'
    cells = {f'"c_{name}"': f'"{name}"' for name in schema.types}
    names, current = ", ".join(cells), ", ".join(cells.values())
    db.execute(f"INSERT INTO {after} (row_id, at, here, {names}) SELECT row_id, {NOW_MS}, 1, {current} {source}")
    cells |= {f'"c_{name}"': f'CASE WHEN {condition} THEN "{name}" END' for name, condition in is_default.items()}
    previous = ", ".join(cells.values())
    db.execute(f"INSERT INTO {before} (row_id, there, {names}) SELECT row_id, 1, {previous} {source}")


def fill_journalled_rows(db: sqlite3.Connection, schema: TableSchema, added: list[str], visible: VisibleRows) -> None:
    """Write the gateway's values of added columns into rows that are in the journal, and into the journal.

    Other columns of these rows are not touched, because the app's writes to them are not edits yet.

    Args:
        db: the app's database.
        schema: the table's new schema.
        added: the added columns.
        visible: the journalled rows.
    """
    table, types = schema.table, schema.types
    for (_, row_id), row in visible.items():
        cells: dict[str, SqlValue] = {name: to_sql(types[name], row[name]) for name in added if row and name in row}
        if cells:
            in_table = ", ".join(f'"{name}" = ?' for name in cells)
            in_journal = ", ".join(f'"c_{name}" = ?' for name in cells)
            db.execute(f'UPDATE "{table}" SET {in_table} WHERE row_id = ?', [*cells.values(), row_id])
            for journal in (before_table(table), after_table(table)):
                db.execute(f"UPDATE {journal} SET {in_journal} WHERE row_id = ?", [*cells.values(), row_id])
