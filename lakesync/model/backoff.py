"""The wait before a retry, which doubles with each failure in a row.

Periodic tasks of the engine, replication to secondaries, followers, clients, the supervisor of `lakesync up` and
sensors call it.
"""

from __future__ import annotations

_MAX_DOUBLINGS = 1_000
"""A float ends at 2.0**1024."""


def doubled_wait(first: float, longest: float, doublings: int) -> float:
    """Return the first wait, doubled some times, or the longest one if that is shorter.

    Args:
        first: the wait without a doubling, in any unit of time.
        longest: the longest wait, in the same unit.
        doublings: how often to double the first wait; 0 or more, with no upper limit.
    """
    return min(longest, first * 2.0 ** min(doublings, _MAX_DOUBLINGS))
