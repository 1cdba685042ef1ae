"""Whether a table that an app has, or had, can be kept in step: what is wrong with it, and what to do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import suppress

from lakesync.client.sql_values import DECLARED
from lakesync.client.texts import first_bad
from lakesync.client.tracking import BESIDES
from lakesync.client.value_checks import MISFITS, NO_ID
from lakesync.model.errors import ConfigurationError, SchemaError
from lakesync.model.schema import TableSchema, check_schema

_KINDS = {"virtual": "virtual table", "shadow": "table of a virtual one"}
_WRITTEN = re.compile(r"""\b(?:INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+["`\[]?(\w+)""", re.IGNORECASE)
"""The tables that a trigger's statements write into."""
_NO_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts and comments."""
_BODY = re.compile(r"\bBEGIN\b", re.IGNORECASE)
_NUMERIC = ("number", "boolean")
_GENERATED = (2, 3)
"""What `PRAGMA table_xinfo` calls hidden in columns that are computed."""


def check_names(schema: TableSchema, others: Iterable[str]) -> None:
    """Refuse names that cannot be part of a statement, or mean something in the app's database.

    Raises:
        SchemaError: a name is no identifier or is reserved, or SQLite takes two tables' names for one.
    """
    check_schema(schema)
    table = schema.table
    for other in others:
        if other != table and other.lower() == table.lower():
            raise SchemaError(f"tables {other!r} and {table!r} differ only in case, which SQLite ignores: rename one")


def check_table(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Refuse a table of the app's own that cannot be tracked, or of which rows can never be sent.

    Raises:
        ConfigurationError: what is wrong, and what to do.
    """
    table = schema.table
    most = db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN) - BESIDES
    if len(schema.columns) > most:
        raise ConfigurationError(
            f"table {table!r} has {len(schema.columns)} columns in its schema, and SQLite has room for {most}: make "
            "two tables of it"
        )
    kind = _kind(db, table)
    if not kind:
        return
    if kind != "table":
        raise ConfigurationError(
            f"{table!r} is a {_KINDS.get(kind, kind)} here, which has no triggers: synchronise a table"
        )
    columns = {name.lower(): (declared, hidden) for _, name, declared, _, _, _, hidden in _xinfo(db, table)}
    if "row_id" not in columns:
        raise ConfigurationError(
            f"table {table!r} has no column row_id: add one, TEXT PRIMARY KEY NOT NULL, for the row's id"
        )
    if not _keeps_text(columns["row_id"][0]):
        raise ConfigurationError(
            f"row_id of table {table!r} is declared {columns['row_id'][0]}, which makes numbers of texts: declare it "
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
                f"column {column.name!r} of table {table!r} is computed here: leave it out of the table's schema"
            )
        if column.type in _NUMERIC and _makes_text(declared):
            raise ConfigurationError(
                f"column {column.name!r} of table {table!r} is declared {declared}, which makes texts of numbers, and "
                f"the schema has it as {column.type}: declare it {DECLARED[column.type]}"
            )


def mend_table(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Give a remade table what a synced one needs, where that changes no value: as pandas' `to_sql` remakes it.

    That is a unique `row_id`, and columns that keep numbers. What cannot be mended is for `check_table` to name.
    """
    table = schema.table
    if _kind(db, table) != "table":
        return
    columns = {name.lower(): (name, declared, hidden) for _, name, declared, _, _, _, hidden in _xinfo(db, table)}
    name, declared, _ = columns.get("row_id", ("", "", 0))
    if name and _keeps_text(declared) and not _is_unique(db, table):
        with suppress(sqlite3.IntegrityError):  # ids that are there twice
            db.execute(f'CREATE UNIQUE INDEX "_lakesync_id_{table}" ON "{table}" (row_id COLLATE BINARY)')
    for column in schema.columns:
        name, declared, hidden = columns.get(column.name.lower(), ("", "", 0))
        if name and column.type in _NUMERIC and _makes_text(declared) and not hidden:
            with suppress(sqlite3.OperationalError):  # an index or a trigger of the app needs it as it is
                _declare_anew(db, table, name, DECLARED[column.type])


def _declare_anew(db: sqlite3.Connection, table: str, column: str, declared: str) -> None:
    """Declare a column anew; its values are converted as SQLite does it.

    Raises:
        sqlite3.OperationalError: something else in the file depends on it; nothing was changed.
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


def check_new_rows(db: sqlite3.Connection, schema: TableSchema) -> None:
    """Refuse rows that a table has already, and that can never be sent.

    Raises:
        ConfigurationError: the first of them.
    """
    table = schema.table
    bad = db.execute(f'SELECT row_id FROM "{table}" WHERE {NO_ID.format("row_id")} LIMIT 1').fetchone()
    if bad is not None:
        raise ConfigurationError(
            f"table {table!r} has a row whose row_id is {bad[0]!r}: give it one of text, of 1 to 512 characters"
        )
    for column in schema.columns:
        misfit, good = MISFITS[column.type]
        name = f't."{column.name}"'
        bad = db.execute(f'SELECT t.row_id, {name} FROM "{table}" t WHERE {misfit.format(name)} LIMIT 1').fetchone()
        if bad is not None:
            raise ConfigurationError(
                f"row {bad[0]!r} of table {table!r} has {bad[1]!r} in column {column.name!r}, which takes {good}: "
                "mend it first"
            )
    unread = first_bad(db, table, list(schema.types))
    if unread is not None:
        raise ConfigurationError(
            f"row {unread[0]!r} of table {table!r} has text in column {unread[1]!r} that is no UTF-8: mend it first"
        )


def check_triggers(db: sqlite3.Connection, tables: Collection[str]) -> None:
    """Refuse triggers of the app's that write into synced tables whatever made them fire.

    What they write while others' changes are applied is nobody's change: others have done it already, and sent it.

    Raises:
        ConfigurationError: the first of them.
    """
    names = {table.lower() for table in tables}
    triggers = db.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, table, sql in triggers:
        body = _BODY.split(_NO_CODE.sub(" ", sql), maxsplit=1)[-1]
        written = {found.lower() for found in _WRITTEN.findall(body)} & names
        if table.lower() in names and written and "_lakesync_quiet" not in sql:
            raise ConfigurationError(
                f"trigger {name!r} writes into table {written.pop()!r}, also while others' changes are applied: give "
                "it the condition WHEN NOT EXISTS (SELECT 1 FROM _lakesync_quiet)"
            )


def lost_columns(db: sqlite3.Connection, kept: TableSchema) -> list[str]:
    """Columns that a table was tracked with and no longer has; all of them where it is gone itself."""
    there = {name.lower() for _, name, *_ in _xinfo(db, kept.table)}
    return [column.name for column in kept.columns if column.name.lower() not in there]


def defaults(db: sqlite3.Connection, schema: TableSchema) -> bool:
    """Whether SQLite fills in synced columns that an INSERT leaves out."""
    names = {column.name.lower() for column in schema.columns}
    return any(default is not None and name.lower() in names for _, name, _, _, default, *_ in _xinfo(db, schema.table))


def is_strict(db: sqlite3.Connection, table: str) -> bool:
    """Whether a table is one of SQLite's STRICT tables."""
    found = db.execute(
        "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", (table,)
    )
    return bool((found.fetchone() or (0,))[0])


def _kind(db: sqlite3.Connection, table: str) -> str:
    """What a name stands for: `table`, `view`, `virtual` and so on; empty where there is nothing of that name."""
    found = db.execute("SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE", (table,))
    return str((found.fetchone() or ("",))[0])


def _xinfo(db: sqlite3.Connection, table: str) -> list[tuple[int, str, str, int, str | None, int, int]]:
    return db.execute(f'PRAGMA table_xinfo("{table}")').fetchall()


def _keeps_text(declared: str) -> bool:
    """Whether a column declared so has text as it came: by SQLite's rules of affinity."""
    kind = declared.upper()
    if "INT" in kind:
        return False
    return not kind or kind == "ANY" or any(part in kind for part in ("CHAR", "CLOB", "TEXT", "BLOB"))


def _makes_text(declared: str) -> bool:
    """Whether a column declared so has numbers as text: by SQLite's rules of affinity."""
    kind = declared.upper()
    return "INT" not in kind and any(part in kind for part in ("CHAR", "CLOB", "TEXT"))


def _is_unique(db: sqlite3.Connection, table: str) -> bool:
    for _, index, unique, _, partial in db.execute(f'PRAGMA index_list("{table}")').fetchall():
        keys = [(name, how) for _, _, name, _, how, key in db.execute(f'PRAGMA index_xinfo("{index}")') if key]
        if unique and not partial and [(str(name).lower(), how) for name, how in keys] == [("row_id", "BINARY")]:
            return True
    return False
