"""`Dialect`: the SQL that differs between databases. Each SQL backend has a subclass, which `SqlAdapter` uses.

`SqlAdapter` stores deltas in a table, and keeps destination tables with the current rows of synced tables. It loads a
batch into a scratch table first, and merges it from there into the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["id", "name", "text", "integer", "string", "number", "boolean", "json", "time"]
"""The kind of values in a column.

`id` and `name`: text of at most 512 and 64 characters, compared by code point including trailing blanks, usable in a
key. `text`: text of any length. `integer`: signed, 64 bits. For destination tables: `string`, `number` (loaded as JSON
text), `boolean`, `json` (loaded as text), `time` (UTC, milliseconds).
"""


class Column(NamedTuple):
    """A column of a table to create."""

    name: str
    kind: Kind
    required: bool = True
    """Whether it is NOT NULL."""
    default: str | None = None
    """SQL expression; None for no default."""


def on_conflict_statement(
    table: str, columns: Sequence[str], rows: str, key: Sequence[str], update: Sequence[str]
) -> str:
    """Return an INSERT … ON CONFLICT, which Postgres and SQLite have.

    Args:
        table: the table to merge into.
        columns: the columns to write.
        rows: the FROM clause of the rows to insert, with all clauses after it.
        key: columns of the primary key.
        update: columns to replace in an existing row; empty leaves existing rows unchanged.
    """
    names = ", ".join(columns)
    action = f"UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in update)}" if update else "NOTHING"
    return f"INSERT INTO {table} ({names}) SELECT {names} {rows} ON CONFLICT ({', '.join(key)}) DO {action}"


class Dialect:
    """SQL statements and expressions of one database. `?` is the placeholder for a value in every statement.

    A subclass implements `column_type`, `create_scratch`, `merge_statement` and `checksum_expression`, and overrides
    other methods where the database differs.
    """

    has_transactions = True
    """Whether several statements can be committed atomically. If not, a follower's mark is written last."""
    concurrent_writers = False
    """Whether transactions on different rows run concurrently. If so, large loads are divided among tasks."""

    max_json_depth: int | None = None
    """The nesting limit of a `json` column; None: no limit."""

    def column_type(self, kind: Kind) -> str:
        """Return the SQL type of a column."""
        raise NotImplementedError

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Return statements that create an empty table visible to this connection only, replacing an existing one.

        Args:
            name: the scratch table's name.
            columns: its columns.
            key: the columns by which rows are unique and looked up.
        """
        raise NotImplementedError

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return the statement that merges the rows of a scratch table into another table.

        Args:
            table: the target, quoted; unique by `key`.
            scratch: the source: a table name, or a query in parentheses that needs an alias. It may contain a key twice
                only if `update` is empty.
            columns: the columns to merge, quoted.
            key: quoted. A conflict with another unique key must fail.
            update: the columns, quoted, to update in existing rows; empty leaves existing rows unchanged.
        """
        raise NotImplementedError

    def quote(self, name: str) -> str:
        """Quote an identifier chosen by the user."""
        return f'"{name}"'

    def checksum_expression(self, text: str) -> str:
        """Return an integer expression: the first eight hexadecimal digits of the MD5 of a text's UTF-8 bytes.

        Args:
            text: a SQL expression, never null.
        """
        raise NotImplementedError

    def text_expression(self, column: Column) -> str:
        """Return a SQL expression for a column's value as text; null stays null.

        A value must have the same text in a scratch table and in the destination table.
        """
        return f"CAST({column.name} AS TEXT)"

    def integer_division(self, number: str, by: int) -> str:
        """Return a SQL expression for an integer quotient.

        Args:
            number: a SQL expression for a positive integer.
            by: the positive divisor.
        """
        return f"({number} / {by})"

    def create_table(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Return statements that create a table if it does not exist.

        Args:
            name: quoted, like all other names.
            columns: the table's columns.
            key: the primary key.
        """
        parts = [self.column_definition(column) for column in columns]
        parts.append(f"PRIMARY KEY ({', '.join(key)})")
        return [f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(parts)})"]

    def create_index(self, name: str, table: str, columns: Sequence[str]) -> Sequence[str]:
        """Return statements that create an index if it does not exist."""
        return [f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({', '.join(columns)})"]

    def create_lookup_index(self, name: str, table: str, column: Column) -> Sequence[str]:
        """Return statements that create an index for equality on values of any length, if the database supports it.

        Args:
            name: the index's name.
            table: quoted.
            column: the column, its name quoted.
        """
        return self.create_index(name, table, [column.name])

    def column_definition(self, column: Column) -> str:
        """Return a column's definition for CREATE TABLE or ADD COLUMN."""
        default = f" DEFAULT {column.default}" if column.default is not None else ""
        return f"{column.name} {self.column_type(column.kind)}{' NOT NULL' * column.required}{default}"
