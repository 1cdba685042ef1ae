"""Sums of ids: what staging and the lake must agree on, a batch and an arrival day at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from lakesync.model.hlc import start_of, wall_of
from lakesync.wire.log import packed_digests

_MODULUS = 1 << 64
_SIGN = 1 << 63
_DAY_MS = 86_400_000


class Tally(NamedTuple):
    """A number of deltas and the sum of their id numbers, modulo 2**64."""

    deltas: int
    id_sum: int

    def plus(self, deltas: int, id_sum: int) -> Tally:
        """This and some more."""
        return Tally(self.deltas + deltas, (self.id_sum + id_sum) % _MODULUS)


NOTHING = Tally(0, 0)


def tally_of(ids: bytes) -> Tally:
    """The tally of what `wire.log.pack_ids` packed."""
    digests = packed_digests(ids)
    count = len(digests) // 8
    return Tally(count, sum(struct.unpack(f">{count}Q", digests)) % _MODULUS)


def signed(id_sum: int) -> int:
    """An unsigned 64-bit sum as databases hold it: two's complement."""
    return id_sum - _MODULUS if id_sum >= _SIGN else id_sum


def unsigned(stored: int) -> int:
    """The reverse of `signed`."""
    return stored % _MODULUS


def day_of(arrival: int) -> str:
    """The UTC day of an arrival, `YYYY-MM-DD`."""
    return _day(wall_of(arrival) // _DAY_MS)


def last_arrival_of_day(arrival: int) -> int:
    """The last arrival that the UTC day of an arrival can have."""
    return start_of((wall_of(arrival) // _DAY_MS + 1) * _DAY_MS) - 1


@lru_cache(maxsize=1024)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * _DAY_MS // 1000, UTC).strftime("%Y-%m-%d")


def by_day(rows: Iterable[tuple[int, int, int]]) -> dict[str, Tally]:
    """Log rows as `(arrival, count, stored id sum)` → each day's tally."""
    days: dict[str, Tally] = {}
    for arrival, count, id_sum in rows:
        day = day_of(arrival)
        days[day] = days.get(day, NOTHING).plus(count, unsigned(id_sum))
    return days


def total(days: Iterable[Tally]) -> Tally:
    """All days in one."""
    whole = NOTHING
    for day in days:
        whole = whole.plus(*day)
    return whole
