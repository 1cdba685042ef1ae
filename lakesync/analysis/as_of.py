"""Parses the value of `lakesync query --as-of`: a time, an arrival, or the id of an Iceberg snapshot.

An arrival is the gateway's timestamp of a commit: an hlc (hybrid logical clock), which is an integer with the
milliseconds since 1970 and a counter. `plans` and `provenance` write times into their messages by `format_hlc`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from lakesync.model.errors import ValidationError
from lakesync.model.hlc import MAX_COUNTER, encode, iso_time, wall_of
from lakesync.model.validation import MAX_HLC

_EARLIEST_ARRIVAL = encode(946_684_800_000, 0)
"""The year 2000. A number outside of the range from here to `_LATEST_ARRIVAL` is no arrival."""
_LATEST_ARRIVAL = encode(4_102_444_800_000, 0)
"""The year 2100."""


class AsOf(NamedTuple):
    """A point in the past. Exactly one of the two fields is set."""

    arrival: int | None = None
    """The state with everything that had arrived by this arrival, inclusive."""
    snapshot: int | None = None
    """The id of an Iceberg snapshot of one of the queried tables. Other tables are read as of its commit time."""


def parse_as_of(text: str) -> AsOf:
    """Parse the value of `--as-of`.

    Args:
        text: `2026-11-21T10:00` or `2026-11-21` (midnight), in UTC if there is no zone; an arrival, which is a
            number that is a time from 2000 to 2100; or `snapshot:ID`. Ids of snapshots are random numbers, and some are
            in the range of arrivals, so an id without `snapshot:` is rejected.

    Raises:
        ValidationError: the text has none of these forms.
    """
    stripped = text.strip()
    number = stripped.removeprefix("snapshot:")
    if number.isdecimal():
        value = int(number)
        if number != stripped:
            return AsOf(snapshot=value)
        if _EARLIEST_ARRIVAL <= value <= _LATEST_ARRIVAL:
            return AsOf(arrival=value)
        raise ValidationError(
            f"--as-of {text!r} is not an arrival, which is a number of 18 digits; write snapshot:{number} for a "
            "snapshot, or a date with hyphens"
        )
    try:
        time = datetime.fromisoformat(stripped)
    except ValueError:
        raise ValidationError(
            f"--as-of {text!r} is not a time, an arrival or a snapshot; write 2026-11-21T10:00:00 (UTC), 18 digits, or "
            "snapshot:ID"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    wall_ms = int(time.timestamp() * 1000)
    if wall_ms < 0:
        raise ValidationError(f"--as-of {text!r} is before 1970, when nothing had arrived; choose a later time")
    return AsOf(arrival=min(encode(wall_ms, MAX_COUNTER), MAX_HLC))  # engines compare it with 64-bit columns


def format_hlc(hlc: int) -> str:
    """Return the wall time of an hlc or arrival in UTC, to the millisecond, in the form that `--as-of` accepts."""
    return iso_time(wall_of(hlc))
