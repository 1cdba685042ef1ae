"""The ledger: counts and sums of delta ids, by which staging and the lake check that they contain the same deltas.

A delta's *id number* is an 8-byte digest of its delta id, as an unsigned integer (`model.delta.id_number`). The stores
on SQLite and on Postgres add each commit to the ledger of the UTC day of its arrival, the gateway's timestamp.
`pipeline_tables` compares a batch that was read back from the lake with the log; the checks of the lake compare whole
days. A *delta* is a change of one row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from lakesync.model.hlc import start_of, wall_of
from lakesync.wire.log import packed_id_numbers

_MODULUS = 1 << 64
"""Sums of id numbers are modulo this."""
_SIGN = 1 << 63
"""Sums from here on are stored as negative numbers."""
_DAY_MS = 86_400_000


class Tally(NamedTuple):
    """A number of deltas and the sum of their id numbers, modulo 2**64."""

    deltas: int
    """Number of deltas."""
    id_sum: int
    """Unsigned sum of their id numbers."""

    def plus(self, deltas: int, id_sum: int) -> Tally:
        """Return the tally after adding deltas.

        Args:
            deltas: the number of added deltas.
            id_sum: the unsigned sum of their id numbers.
        """
        return Tally(self.deltas + deltas, (self.id_sum + id_sum) % _MODULUS)


EMPTY_TALLY = Tally(0, 0)
"""The tally of no deltas."""


def tally_of(ids: bytes) -> Tally:
    """Return the tally of delta ids that `wire.log.pack_ids` packed.

    Args:
        ids: the packed ids of one log row, as the store returns them.
    """
    numbers = packed_id_numbers(ids)
    count = len(numbers) // 8  # a number has 8 bytes
    return Tally(count, sum(struct.unpack(f">{count}Q", numbers)) % _MODULUS)


def signed(id_sum: int) -> int:
    """Return an unsigned 64-bit sum in two's complement, as databases store it."""
    return id_sum - _MODULUS if id_sum >= _SIGN else id_sum


def unsigned(stored: int) -> int:
    """Return the unsigned sum of a value that `signed` returned."""
    return stored % _MODULUS


def day_of(arrival: int) -> str:
    """Return the UTC day of an arrival, as `YYYY-MM-DD`."""
    return _day(wall_of(arrival) // _DAY_MS)


def last_arrival_of_day(arrival: int) -> int:
    """Return the last possible arrival of the UTC day of an arrival."""
    return start_of((wall_of(arrival) // _DAY_MS + 1) * _DAY_MS) - 1


def by_day(rows: Iterable[tuple[int, int, int]]) -> dict[str, Tally]:
    """Return the tally of each UTC day, by `YYYY-MM-DD`.

    Args:
        rows: arrival, number of deltas, and signed id sum, as stored, of each log row.
    """
    days: dict[str, Tally] = {}
    for arrival, count, id_sum in rows:
        day = day_of(arrival)
        days[day] = days.get(day, EMPTY_TALLY).plus(count, unsigned(id_sum))
    return days


def total(days: Iterable[Tally]) -> Tally:
    """Return the sum of all days."""
    tally = EMPTY_TALLY
    for day in days:
        tally = tally.plus(*day)
    return tally


@lru_cache(maxsize=1024)
def _day(number: int) -> str:
    """Return a day as `YYYY-MM-DD`, given the number of days since 1970-01-01."""
    return datetime.fromtimestamp(number * _DAY_MS // 1000, UTC).strftime("%Y-%m-%d")
