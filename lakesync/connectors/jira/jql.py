"""Combines a user's JQL filter with generated conditions. The Jira source calls it."""

from __future__ import annotations

import re

from lakesync.connectors.user_filters import ESCAPES, balanced_condition, escape

_SPECIAL = re.compile(r"""["'\\\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]""")
"""Quotation marks, backslashes, and the control characters and non-characters that JQL rejects in a string."""


def build_jql(user_filter: str | None, *conditions: str, order: str) -> str:
    """Return a query for issues that match a user's filter and all conditions, in the given order.

    The filter is put in parentheses, so that an OR in it cannot bypass the conditions. Its own ORDER BY is dropped.

    Args:
        user_filter: the user's filter; None for no filter.
        conditions: further conditions in JQL.
        order: what follows ORDER BY.

    Raises:
        ConfigurationError: quotation marks or parentheses in the filter are not balanced.
    """
    own = balanced_condition(user_filter, "jql", stop=("ORDER", "BY")) if user_filter is not None else ""
    parts = [f"({own})"] if own else []
    return f"{' AND '.join([*parts, *conditions])} ORDER BY {order}"


def quote(value: str) -> str:
    """Return a text as a JQL string."""
    return f'"{escape(value, _SPECIAL, ESCAPES)}"'
