"""Which of the app's tables can be synchronised, with the schemas that the app declares; and how to repair one.

`SqliteClientStore` calls it when it opens a database or a schema gets columns. Triggers of LakeSync on a synced table
journal what the app writes. The table `_lakesync_quiet` has a row while LakeSync itself writes, so that they do not.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from lakesync.client.sqlite.change_tracking import JOURNAL_COLUMNS
from lakesync.client.sqlite.sql_values import DECLARED, ROW_ID_CONSTRAINT, VALUE_CONSTRAINTS, find_invalid_utf8
from lakesync.client.sqlite.stamps import known_table
from lakesync.model.errors import ConfigurationError, SchemaError
from lakesync.model.schema import TableSchema, check_schema

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
    kind, _ = _kind_and_strict(db, table)
    if not kind:
        return
    if kind != "table":
        raise ConfigurationError(
            f"{table!r} is a {_KIND_NAMES.get(kind, kind)} in this database, and only a table can have the triggers "
            "that track changes: synchronise a table"
        )
    columns = columns_of(db, table)
    _check_row_id(db, table, columns.get("row_id"))
    for column in schema.columns:
        existing = columns.get(column.name.lower())
        if existing is None:
            continue
        if existing.hidden in _GENERATED:
            raise ConfigurationError(
                f"column {column.name!r} of table {table!r} is a generated column: remove it from the table's schema"
            )
        if column.type in _NUMERIC and _turns_numbers_into_text(existing.declared):
            raise ConfigurationError(
                f"column {column.name!r} of table {table!r} is declared {existing.declared}, which turns numbers into "
                f"text, and its schema says {column.type}: declare it {DECLARED[column.type]}"
            )


def check_text_columns(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Check that no string column of a table of the app turns text into numbers, as `'007'` into 7.

    Dates and times are no numbers, so their declared types are allowed. Call it only for a table that was not
    synchronised before: earlier versions did not check this.

    Raises:
        ConfigurationError: a column does.
    """
    columns = columns_of(db, schema.table)
    for column in schema.columns:
        existing = columns.get(column.name.lower())
        if column.type != "string" or existing is None:
            continue
        declared = existing.declared
        is_time = any(part in declared.upper() for part in ("DATE", "TIME"))
        if not is_time and not _stores_text_unchanged(declared):
            raise ConfigurationError(
                f"column {column.name!r} of table {schema.table!r} is declared {declared}, which turns text into "
                f"numbers, and its schema says string: declare it {DECLARED['string']}"
            )


def repair_table(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Repair a recreated table as far as no value changes, for example after pandas' `to_sql(if_exists="replace")`.

    It makes `row_id` unique and declares numeric columns again. `check_table` reports what it cannot repair.

    Args:
        db: the app's database.
        schema: the table's schema.
    """
    table = schema.table
    if _kind_and_strict(db, table)[0] != "table":
        return
    columns = columns_of(db, table)
    row_id = columns.get("row_id")
    if row_id is not None and _stores_text_unchanged(row_id.declared) and not _is_unique(db, table):
        with suppress(sqlite3.IntegrityError):  # an id exists twice
            db.execute(f'CREATE UNIQUE INDEX "_lakesync_id_{table}" ON "{table}" (row_id COLLATE BINARY)')
    for column in schema.columns:
        existing = columns.get(column.name.lower())
        if existing is None or column.type not in _NUMERIC or existing.hidden:
            continue
        if _turns_numbers_into_text(existing.declared):
            with suppress(sqlite3.OperationalError):  # an index or a trigger of the app depends on the column
                _redeclare_column(db, table, existing.name, DECLARED[column.type])


def check_existing_rows(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Check that the gateway can accept the rows of a table that it does not have, and can identify every row.

    The values of a row that it has may have been written by another client, with a schema of other types.

    Args:
        db: the app's database, with a table of records for the rows that the gateway has.
        schema: the table's schema.

    Raises:
        ConfigurationError: the gateway would reject a row, which the message names.
    """
    table = schema.table
    invalid_id, expected = ROW_ID_CONSTRAINT
    invalid = db.execute(f'SELECT row_id FROM "{table}" WHERE {invalid_id.format("row_id")} LIMIT 1').fetchone()
    if invalid is not None:
        raise ConfigurationError(f"table {table!r} has a row whose row_id is {invalid[0]!r}: change it to {expected}")
    check_existing_values(
        db,
        schema,
        schema.types,
        f"t.row_id NOT IN (SELECT row_id FROM {known_table(table)}) "
        f"AND t.row_id NOT IN (SELECT row_id FROM _lakesync_edits WHERE tbl = '{table}')",
    )


def check_existing_values(
    db: sqlite3.Connection, schema: TableSchema, columns: Iterable[str], condition: str = "TRUE"
) -> None:
    """Check that the gateway can accept the values that some columns of a table already have.

    Args:
        db: the app's database.
        schema: the table's schema.
        columns: the columns to check.
        condition: which rows of the table `t` to check, in SQL.

    Raises:
        ConfigurationError: the gateway would reject a value, which the message names.
    """
    table, names = schema.table, list(columns)
    for column in names:
        invalid_value, expected = VALUE_CONSTRAINTS[schema.types[column]]
        name = f't."{column}"'
        query = f'SELECT t.row_id, {name} FROM "{table}" t WHERE ({invalid_value.format(name)}) AND {condition} LIMIT 1'
        invalid = db.execute(query).fetchone()
        if invalid is not None:
            raise ConfigurationError(
                f"row {invalid[0]!r} of table {table!r} has {invalid[1]!r} in column {column!r}, which takes "
                f"{expected}: change the value, then open the database again"
            )
    unreadable = find_invalid_utf8(db, table, names)
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
        written = {target.lower() for target in _WRITTEN_TABLE.findall(body)} & names
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
    existing = columns_of(db, schema.table)
    return [column.name for column in schema.columns if column.name.lower() not in existing]


def has_defaults(db: sqlite3.Connection, schema: TableSchema) -> bool:
    """Return whether a synced column has a DEFAULT, which SQLite writes if an INSERT omits the column.

    Args:
        db: the app's database.
        schema: the table's schema.
    """
    names = {column.name.lower() for column in schema.columns}
    columns = columns_of(db, schema.table)
    return any(column.default is not None for name, column in columns.items() if name in names)


def is_strict(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a table is a STRICT table.

    Args:
        db: the app's database.
        table: its name.
    """
    return _kind_and_strict(db, table)[1]


class _Column(NamedTuple):
    """A column of a table of the app, with the fields of SQLite's `table_xinfo`."""

    number: int
    name: str
    declared: str
    """The declared type."""
    not_null: int
    default: str | None
    primary_key: int
    hidden: int
    """Not 0 for a column that `SELECT *` omits, and for a generated column (`_GENERATED`)."""


def columns_of(db: sqlite3.Connection, table: str) -> dict[str, _Column]:
    """Return the columns of a table, by name in lower case; empty if the table does not exist."""
    columns = [_Column(*row) for row in db.execute(f'PRAGMA table_xinfo("{table}")')]
    return {column.name.lower(): column for column in columns}


def _check_row_id(db: sqlite3.Connection, table: str, row_id: _Column | None) -> None:
    """Check that the column `row_id` of the app's table identifies its rows, and stores ids unchanged."""
    if row_id is None:
        raise ConfigurationError(
            f"table {table!r} has no column row_id: add one for the row's id, as TEXT PRIMARY KEY NOT NULL"
        )
    if row_id.hidden in _GENERATED:
        raise ConfigurationError(
            f"row_id of table {table!r} is a generated column, which cannot be written: make it an ordinary column"
        )
    if not _stores_text_unchanged(row_id.declared):
        raise ConfigurationError(
            f"row_id of table {table!r} is declared {row_id.declared}, which turns text into numbers: declare it TEXT"
        )
    if not _is_unique(db, table):
        raise ConfigurationError(
            f"row_id of table {table!r} is not unique: make it the primary key, or give it a UNIQUE index, without a "
            "collation of its own"
        )
    if not _compares_bytes(db, table):
        raise ConfigurationError(
            f"row_id of table {table!r} has a collation, by which different ids are equal: declare it without COLLATE"
        )


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


def _kind_and_strict(db: sqlite3.Connection, table: str) -> tuple[str, bool]:
    """Return what a name refers to, such as `table` or `view`, "" if to nothing; and whether it is STRICT."""
    query = "SELECT type, strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    kind, strict = db.execute(query, (table,)).fetchone() or ("", 0)
    return kind, bool(strict)


def _stores_text_unchanged(declared: str) -> bool:
    """Return whether the affinity of a declared type leaves text unchanged (SQLite, "Datatypes", section 3.1)."""
    kind = declared.upper()
    is_blob = kind in ("", "ANY") or ("BLOB" in kind and "INT" not in kind)
    return is_blob or _turns_numbers_into_text(declared)


def _turns_numbers_into_text(declared: str) -> bool:
    """Return whether a declared type has TEXT affinity."""
    kind = declared.upper()
    return "INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT"))


def _is_unique(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a unique index has exactly the column `row_id`, compared by its bytes."""
    for _, index, unique, _, partial in db.execute(f'PRAGMA index_list("{table}")').fetchall():
        columns = db.execute(f'PRAGMA index_xinfo("{index}")').fetchall()
        keys = [(str(name).lower(), str(collation).upper()) for _, _, name, _, collation, is_key in columns if is_key]
        if unique and not partial and keys == [("row_id", "BINARY")]:
            return True
    return False


def _compares_bytes(db: sqlite3.Connection, table: str) -> bool:
    """Return whether SQL compares row ids by their bytes; a unique index may have another collation than the column.

    A UNION compares texts with the collation of its first SELECT's column.
    """
    ids = f"SELECT row_id FROM \"{table}\" WHERE 0 UNION SELECT 'a' UNION SELECT 'A' UNION SELECT 'a '"
    try:
        return len(db.execute(ids).fetchall()) == len(("a", "A", "a "))
    except sqlite3.OperationalError:  # a collation of the app
        return False
