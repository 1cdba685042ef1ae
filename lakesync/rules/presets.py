"""Sync rules for simple apps: everything for everyone, or each user's own rows."""

from __future__ import annotations

from lakesync.rules.model import Bucket, Filter, SyncRules


def pass_all() -> SyncRules:
    """Return rules that show every row to every client."""
    return SyncRules(1, ())


def user_scoped(column: str, tables: tuple[str, ...] = ()) -> SyncRules:
    """Return rules that show a client the rows whose `column` contains its token's `sub`.

    Args:
        column: compared with `sub`.
        tables: to which the rules apply; empty for all.
    """
    return SyncRules(1, (Bucket("user", tables, (Filter(column, "eq", "jwt:sub"),)),))
