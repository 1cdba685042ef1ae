"""What `--as-of` means: a time, an arrival, or a snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from lakesync.model.errors import ValidationError
from lakesync.model.hlc import MAX_COUNTER, encode, wall_of

_EARLIEST = encode(946_684_800_000, 0)  # 2000
_LATEST = encode(4_102_444_800_000, 0)  # 2100


class AsOf(NamedTuple):
    """A point in the past; exactly one of the two is given."""

    arrival: int | None = None
    """What arrived up to here, itself included."""
    snapshot: int | None = None
    """A snapshot of one of the tables asked for."""


def parse_as_of(text: str) -> AsOf:
    """Read `2026-11-21T10:00`, `2026-11-21` (its start), an arrival as 18 digits, `snapshot:ID` or a snapshot's id.

    A time without a zone is UTC.

    Raises:
        ValidationError: it is none of these.
    """
    given = text.strip()
    number = given.removeprefix("snapshot:")
    if number.isdecimal():
        value = int(number)
        is_arrival = number == given and _EARLIEST <= value <= _LATEST
        return AsOf(arrival=value) if is_arrival else AsOf(snapshot=value)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise ValidationError(
            f"--as-of {text!r} is neither a time (2026-11-21T10:00:00, UTC unless it says otherwise), nor an arrival, "
            "nor snapshot:ID"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    wall_ms = int(moment.timestamp() * 1000)
    if wall_ms < 0:
        raise ValidationError(f"--as-of {text!r} is before 1970: nothing arrived then")
    return AsOf(arrival=encode(wall_ms, MAX_COUNTER))


def shown(arrival: int) -> str:
    """An arrival's or an hlc's wall time, as `--as-of` reads it."""
    return (
        datetime.fromtimestamp(wall_of(arrival) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
