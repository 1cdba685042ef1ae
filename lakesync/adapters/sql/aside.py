"""Tables of rows that a follower continues without: a mark each, `FOLLOWER!TABLE`, changed in its transactions."""

from __future__ import annotations

import msgspec

from lakesync.adapters.dead_letters import SetAside
from lakesync.adapters.sql import marks
from lakesync.adapters.sql.executor import Connection
from lakesync.model.hlc import wall_clock

FIRST_PAUSE_MS = 60_000
"""Before the second attempt; twice as long before each further one."""
LONGEST_PAUSE_MS = 3_600_000
_LONGEST_REASON = 2_000


def follower_of(mark_name: str) -> str:
    """The follower whose mark this is, or that of a part of its load."""
    return mark_name.partition("#")[0]


def tables_aside(connection: Connection, follower: str) -> dict[str, SetAside]:
    """The tables that a follower continues without."""
    found = marks.read_prefix(connection, f"{follower}!")
    asides = (msgspec.json.decode(text, type=SetAside) for text in found.values() if text)
    return {each.table: each for each in asides}


def put_aside(connection: Connection, follower: str, table: str, reason: str) -> SetAside:
    """Continue without a table, within the caller's transaction."""
    name = _name(follower, table)
    text = marks.read(connection, name)
    failures = 1 + (msgspec.json.decode(text, type=SetAside).failures if text else 0)
    pause = min(FIRST_PAUSE_MS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_MS)
    aside = SetAside(table, reason[:_LONGEST_REASON], failures, wall_clock() + pause)
    marks.put(connection, name, msgspec.json.encode(aside).decode())
    return aside


def retry_now(connection: Connection, follower: str, table: str) -> None:
    """Have a table's rows written by the next run."""
    name = _name(follower, table)
    text = marks.read(connection, name)
    was = msgspec.json.decode(text, type=SetAside) if text else SetAside(table, "a retry was requested", 0, 0)
    aside = msgspec.structs.replace(was, retry_ms=0)
    marks.put(connection, name, msgspec.json.encode(aside).decode())


def bring_back(connection: Connection, follower: str, table: str) -> None:
    """Have a table's rows written with each batch again; the mark stays, empty."""
    name = _name(follower, table)
    text = marks.read(connection, name)
    if text:
        marks.put(connection, name, "")


def _name(follower: str, table: str) -> str:
    return f"{follower}!{table}"
