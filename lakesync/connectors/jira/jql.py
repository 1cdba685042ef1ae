"""A user's JQL and our own conditions in one query."""

from __future__ import annotations

import re

from lakesync.connectors.conditions import ESCAPES, condition, escaped

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]""")


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
    """Spell a value as a JQL text; JQL takes no control characters or non-characters as they are."""
    return f'"{escaped(value, _SPECIAL, ESCAPES)}"'
