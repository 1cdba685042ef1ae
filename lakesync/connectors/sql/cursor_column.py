"""Cursor columns: the value at which a poll of a SQL table starts, and which values are settled after it.

A *cursor column* grows with each change of a row, such as an update time. A poll reads the rows at or above a value of
it. A transaction sets the column when it writes the row, but others see the row only after the commit. So rows may
appear below the highest value that a poll has read. A value is *settled* once none can appear at or below it; the next
poll starts at the settled value, minus the *lookback*. What is known of open transactions is the *horizon* of the
poll's snapshot of the database:

- With a `TransactionHorizon` (Postgres), a value is settled once every transaction that was open when it was read has
  ended, however long that takes. The lookback covers transactions that had no number yet, because they had not written
  anything.
- With an `AgeHorizon` (MySQL), the settled value is the highest one minus the age of the oldest transaction. For a
  column of numbers, the age says nothing, and every value counts as settled.
- Without a horizon (BigQuery), every value counts as settled, and only the lookback protects against missed rows.

`SqlSource` calls this module. The readers of the databases return the horizons.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from lakesync.connectors.base import Cursor
from lakesync.connectors.sql.reader import AgeHorizon, TransactionHorizon, format_time

_LOOKBACK_MS = 60_000
"""How far before a settled value that is a time a poll starts, by default."""
_LOOKBACK = 1_000
"""How far before a settled value that is a number a poll starts, by default."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].+)?")
"""A text that may be a time, as the readers format it. Others that ISO 8601 allows, such as `20240115`, are texts."""
_MAX_PENDING = 50
"""Values that wait for open transactions, at most. Later values are recorded by a later poll."""
_INFINITY = "infinity"
"""A time of Postgres that is later than all others, as its reader returns it."""


def cursor_value(value: Any) -> Any:
    """Return a row's value in the cursor column if a poll can continue from it; None for null and an infinite time.

    Args:
        value: the value as JSON.
    """
    return None if value == _INFINITY else value


def start_value(cursor: Cursor | None, lookback: int | None) -> Any:
    """Return the value of the cursor column at which a poll starts: the settled one minus the lookback.

    Args:
        cursor: the cursor of the last poll; None before the first.
        lookback: milliseconds, or units of a cursor column of numbers; None for the default.

    Returns:
        The value; None to read the table from its beginning.
    """
    settled = cursor["settled"] if cursor is not None else None
    if settled is None:
        return None
    if isinstance(settled, str):
        time = _parse_time(settled)
        lookback_ms = _LOOKBACK_MS if lookback is None else lookback
        return settled if time is None else time - timedelta(milliseconds=lookback_ms)
    return settled - (_LOOKBACK if lookback is None else lookback)


def settle(cursor: Cursor | None, horizon: TransactionHorizon | AgeHorizon | None, reached: Any) -> dict[str, Any]:
    """Return the part of the next poll's cursor that says which values are settled.

    Args:
        cursor: the cursor that this poll started from; None for the first poll.
        horizon: the horizon of this poll's snapshot; None if the database has none.
        reached: the highest value that this poll has read so far; None if it has read none.

    Returns:
        `settled`, the highest settled value; and `pending`, a list of `[transaction number, value]`. Such a value is
        settled once all transactions with lower numbers have ended: the first transaction to write after the value was
        read has this number.
    """
    if not isinstance(horizon, TransactionHorizon):
        time = _parse_time(reached) if isinstance(reached, str) else None
        if horizon is not None and time is not None:
            reached = format_time(time - timedelta(seconds=horizon.seconds))
        return {"settled": reached, "pending": []}
    settled = cursor["settled"] if cursor is not None else None
    pending: list[list[Any]] = []
    # For example, a poll reaches 70 while transaction 5 is open and 8 is the next number: [8, 70] is pending. A later
    # poll, whose oldest open transaction is 9, settles 70. Only the first value with a number is kept, and the newest
    # beyond the limit are left out: later polls record values again, with higher numbers.
    for number, value in [*(cursor["pending"] if cursor is not None else ()), [horizon.next, reached]]:
        # a value above `reached` is from an earlier poll: rows below it that appeared since may still be unread
        if number <= horizon.oldest_open and not _exceeds(value, reached):
            settled = greater(settled, value)
        elif not pending or pending[-1][0] != number:
            pending.append([number, value])
    return {"settled": settled, "pending": pending[:_MAX_PENDING]}


def greater(one: Any, other: Any) -> Any:
    """Return the greater of two values, or the first if they are equal; as `_exceeds` compares them."""
    return other if _exceeds(other, one) else one


def _exceeds(one: Any, other: Any) -> bool:
    """Return whether a value is greater than another one.

    Texts that are times are compared as times, in UTC if they have no time zone. None is less than any value.
    """
    if one is None or other is None:
        return one is not None and other is None
    if isinstance(one, str) and isinstance(other, str):
        first, second = _parse_time(one), _parse_time(other)
        if first is not None and second is not None:
            return _in_utc(first) > _in_utc(second)
    return bool(one > other)


def _in_utc(time: datetime) -> datetime:
    """Return a time with its time zone, UTC if it has none."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _parse_time(text: str) -> datetime | None:
    """Parse a time as the readers format it; None for another text."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
