"""Rules that most apps start with."""

from __future__ import annotations

from lakesync.rules.model import Bucket, Filter, SyncRules


def pass_all() -> SyncRules:
    """Everyone sees everything."""
    return SyncRules(1, ())


def user_scoped(column: str, tables: tuple[str, ...] = ()) -> SyncRules:
    """Everyone sees the rows whose `column` holds their token's `sub`; no table named means all of them."""
    return SyncRules(1, (Bucket("user", tables, (Filter(column, "eq", "jwt:sub"),)),))
