"""A user's JQL and our own conditions in one query."""

from __future__ import annotations

from lakesync.connectors.conditions import condition


def combined(user: str | None, *conditions: str, order: str) -> str:
    """A query of what matches a user's filter and the conditions, in an order of ours.

    The filter is one bracketed condition, so that an OR in it frees nothing; its own ORDER BY is dropped.

    Raises:
        ConfigurationError: the filter's quotation marks or brackets do not match.
    """
    kept = condition(user, "jql", stop=("ORDER", "BY")) if user is not None else ""
    parts = [f"({kept})"] if kept else []
    return f"{' AND '.join([*parts, *conditions])} ORDER BY {order}"


def quoted(value: str) -> str:
    """A value as a JQL text."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
