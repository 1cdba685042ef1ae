"""Combines a user's JQL filter with generated conditions."""

from __future__ import annotations

import re

from lakesync.connectors.user_filters import ESCAPES, balanced_condition, escape

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]""")


def build_jql(user: str | None, *conditions: str, order: str) -> str:
    """Return a query for what matches the user's filter and all conditions, with its own sort order.

    The filter is put in brackets, so that an OR in it cannot bypass other conditions. Its ORDER BY is dropped.

    Args:
        user: the user's filter.
        conditions: further conditions.
        order: the sort order.

    Raises:
        ConfigurationError: quotation marks or brackets in the filter are not balanced.
    """
    kept = balanced_condition(user, "jql", stop=("ORDER", "BY")) if user is not None else ""
    parts = [f"({kept})"] if kept else []
    return f"{' AND '.join([*parts, *conditions])} ORDER BY {order}"


def quote(value: str) -> str:
    """Quote a JQL string; control characters and non-characters are escaped."""
    return f'"{escape(value, _SPECIAL, ESCAPES)}"'
