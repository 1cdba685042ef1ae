"""What differs from one SQL database to the next in words: five methods, and some that rarely differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["id", "name", "text", "integer", "string", "number", "boolean", "json", "time"]
"""What a column holds.

`id` and `name`: text of at most 512 and 64 characters that compares by code point, blanks at the end included, and may
stand in a key. `text`: text of any length. `integer`: signed, 64 bits. The rest is for tables of rows: `string`,
`number` (loaded as its JSON text), `boolean`, `json` (its text), `time` (UTC, milliseconds).
"""


class Column(NamedTuple):
    """A column of a table that is made."""

    name: str
    kind: Kind
    required: bool = True
    default: str | None = None
    """As SQL."""


class Dialect:
    """How a database wants things said. `?` stands for a value in every statement.

    A subclass says `column`, `scratch`, `merge` and `checksum`, and overrides of the rest what differs.
    """

    transactions = True
    """Whether several statements are done or undone as one; where not, a follower's mark is written last."""
    concurrent = False
    """Whether transactions that write different rows run at the same time; then large loads are divided among tasks."""

    json_depth: int | None = None
    """The deepest JSON value that a `json` column takes; None for no limit of its own."""

    def column(self, kind: Kind) -> str:
        """The type of a column that holds values of a kind."""
        raise NotImplementedError

    def scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Statements that leave an empty table that this connection alone sees, whatever was there before.

        Args:
            name: of it.
            columns: its columns.
            key: what it will be unique by, and looked into by, where the database wants to know.
        """
        raise NotImplementedError

    def merge(self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]) -> str:
        """The statement that brings the rows of a scratch table into another.

        Args:
            table: where to, quoted; unique by `key`.
            scratch: where from, a name or a query in parentheses, to be given an alias; may hold a key twice only where
                `update` is empty.
            columns: to bring, quoted.
            key: quoted. Another unique key that is in the way is an error.
            update: the columns, quoted, that a row which is there already gets; empty: it stays as it is.
        """
        raise NotImplementedError

    def quote(self, name: str) -> str:
        """A name of the user's, so that it is one whatever it is called."""
        return f'"{name}"'

    def checksum(self, text: str) -> str:
        """An integer from 0 to 2**32 - 1: the first eight hexadecimal digits of the MD5 of a text's UTF-8 bytes.

        Args:
            text: as SQL, never null.
        """
        raise NotImplementedError

    def text(self, column: Column) -> str:
        """A column's value as text, null where it is; the same for a scratch table and another."""
        return f"CAST({column.name} AS TEXT)"

    def divided(self, number: str, by: int) -> str:
        """A positive integer divided by another, without what is left over."""
        return f"({number} / {by})"

    def table(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Statements that make a table where there is none.

        Args:
            name: quoted, as are all others.
            columns: its columns.
            key: of the primary key.
        """
        parts = [self.define(column) for column in columns]
        parts.append(f"PRIMARY KEY ({', '.join(key)})")
        return [f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(parts)})"]

    def index(self, name: str, table: str, columns: Sequence[str]) -> Sequence[str]:
        """Statements that make an index where there is none."""
        return [f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({', '.join(columns)})"]

    def lookup(self, name: str, table: str, column: Column) -> Sequence[str]:
        """Statements that make an index by which a value of any length is found, where the database has such a one.

        Args:
            name: of the index.
            table: quoted.
            column: of the table, its name quoted.
        """
        return self.index(name, table, [column.name])

    def define(self, column: Column) -> str:
        """A column within CREATE TABLE or ADD COLUMN."""
        default = f" DEFAULT {column.default}" if column.default is not None else ""
        return f"{column.name} {self.column(column.kind)}{' NOT NULL' * column.required}{default}"
