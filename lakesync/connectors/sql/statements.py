"""SQL as the drivers take it."""

from __future__ import annotations


def marked(statement: str) -> str:
    """A statement with `?` in place of the format marks that psycopg and pymysql read; other `%` are escaped.

    A `?` of ours stands outside of what a user wrote, or behind it: what he wrote is in brackets before the first one.
    """
    head, bracket, tail = statement.rpartition(") polled")
    return head.replace("%", "%%") + bracket + tail.replace("%", "%%").replace("?", "%s")
