"""Which part of the log a flush takes, and what must hold before it counts as done."""

from __future__ import annotations

from collections.abc import Iterable

from lakesync.model.errors import IntegrityError
from lakesync.staging.decoding import decode_cut_rules
from lakesync.staging.head import Head
from lakesync.staging.ledger import Tally, last_arrival_of_day
from lakesync.staging.records import Batch, Cut

MOST_PUSHES = 100_000
"""In a batch: commits wait while its log rows are looked through, when it is planned and when it is confirmed."""


def choose(
    head: Head,
    waiting: Iterable[tuple[int, int, int, int]],
    max_deltas: int,
    through: int | None = None,
    since: int | None = None,
) -> Batch | None:
    """A batch over a whole prefix of the unflushed log: at least one push, and pushes of one UTC day only.

    A batch of one day is whole in one partition of the lake, so that a backfill of a day flushes no other.

    Args:
        head: the shard's.
        waiting: `(seq, arrival, count, bytes)` of the unflushed log rows in order; at least one, read no further
            than needed.
        max_deltas: bounds a batch of several pushes, as `MOST_PUSHES` does.
        through: the highest arrival that is taken; None: no bound.
        since: the lowest arrival at which the batch may begin; None: no bound.

    Returns:
        The batch; None where the first unflushed push is outside the bounds.
    """
    taken: list[tuple[int, int, int, int]] = []
    deltas = 0
    for row in waiting:
        if taken and (deltas + row[2] > max_deltas or len(taken) == MOST_PUSHES):
            break
        if through is not None and row[1] > through:
            break
        if not taken:
            if since is not None and row[1] < since:
                break
            last_of_day = last_arrival_of_day(row[1])
            through = last_of_day if through is None else min(through, last_of_day)
        taken.append(row)
        deltas += row[2]
    if not taken:
        return None
    first, last = taken[0], taken[-1]
    return Batch(
        batch_id=f"{head.gateway}.{head.shard}.{head.epoch}.{first[0]}-{last[0]}",
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        from_seq=first[0],
        to_seq=last[0],
        deltas=deltas,
        bytes=sum(size for _, _, _, size in taken),
        arrival_low=first[1],
        arrival_high=last[1],
    )


def check_read_back(batch: Batch, logged: Tally, read: Tally) -> None:
    """Whether the lake holds what the log holds.

    Raises:
        IntegrityError: it does not.
    """
    if logged != read:
        raise IntegrityError(
            f"batch {batch.batch_id!r}: the log has {logged.deltas} deltas with id sum {logged.id_sum}, the lake was "
            f"read as {read.deltas} with {read.id_sum}: nothing is confirmed, read the table again or flush again"
        )


REINDEXED = "SELECT rules_version FROM reindex WHERE gateway = ? AND done = 1"
"""The version of the rules with which all rows were brought in line last, where that is done."""


NEWEST_CUT = "SELECT body FROM cut WHERE gateway = ? AND epoch = ? ORDER BY arrival DESC LIMIT 1"
"""The newest cut of an epoch."""

CUT_ARRIVAL = "SELECT max(arrival) FROM cut WHERE gateway = ? AND epoch = ?"
"""The arrival of that cut."""


def uncut_rules(head: Head, in_line: tuple[int] | None, newest: tuple[bytes] | None) -> int | None:
    """The rules version that needs a cut, as that of the newest one is older.

    Args:
        head: the gateway's.
        in_line: what `REINDEXED` finds.
        newest: the newest cut as it is stored; where there is none, the first flush makes one.
    """
    version = head.config.rules_version
    if newest is None or in_line != (version,) or decode_cut_rules(newest[0]).rules_version >= version:
        return None
    return version


def check_cut(cut: Cut, head: Head) -> None:
    """Whether a cut is of the store's own epoch.

    Raises:
        IntegrityError: it is of another.
    """
    if cut.epoch != head.epoch:
        raise IntegrityError(
            f"the cut of gateway {cut.gateway!r} is of epoch {cut.epoch}, the store's is {head.epoch}: "
            "it describes another store's arrivals, make a new cut"
        )
