"""Chooses the batch of log rows that the next flush writes to the lake, and checks what was read back from there.

The *log* has one row for each push. A *flush* copies a batch of them to the lake, reads the lake back, and confirms the
batch to the store. `pipeline_tables` calls these pure functions in the transactions that plan and confirm.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakesync.model.errors import IntegrityError
from lakesync.staging.head import Head
from lakesync.staging.ledger import Tally, last_arrival_of_day
from lakesync.staging.records import Batch

MAX_PUSHES = 100_000
"""The most pushes of a batch: commits wait while its log rows are read, when it is planned and when it is confirmed."""


def choose(
    head: Head,
    waiting: Iterable[tuple[int, int, int, int]],
    max_deltas: int,
    through: int | None = None,
    since: int | None = None,
) -> Batch | None:
    """Return a batch over a prefix of the unflushed log: at least one push, and only pushes of one UTC day of arrival.

    The lake is partitioned by day. So a batch of one day is in one partition, and a backfill of a day flushes no other
    day.

    Args:
        head: the counters of the gateway's shard.
        waiting: seq, arrival, number of deltas, and stored bytes of each unflushed log row, in order; read only as far
            as needed.
        max_deltas: the most deltas of a batch of several pushes; a larger push is a batch of its own.
        through: the highest arrival that may be included; None for any.
        since: the lowest arrival at which the batch may begin; None for any.

    Returns:
        The batch; None if the first unflushed push is below `since` or above `through`, or nothing is unflushed.
    """
    rows: list[tuple[int, int, int, int]] = []
    deltas = 0
    for seq, arrival, count, size in waiting:
        if rows and (deltas + count > max_deltas or len(rows) == MAX_PUSHES):
            break
        if through is not None and arrival > through:
            break
        if not rows:
            if since is not None and arrival < since:
                break
            last_of_day = last_arrival_of_day(arrival)
            through = last_of_day if through is None else min(through, last_of_day)
        rows.append((seq, arrival, count, size))
        deltas += count
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    return Batch(
        batch_id=f"{head.gateway}.{head.shard}.{head.epoch}.{first[0]}-{last[0]}",
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        from_seq=first[0],
        to_seq=last[0],
        deltas=deltas,
        bytes=sum(size for _, _, _, size in rows),
        arrival_low=first[1],
        arrival_high=last[1],
    )


def check_read_back(batch: Batch, logged: Tally, read: Tally) -> None:
    """Check that the lake contains the deltas that the log contains, by their number and the sum of their ids.

    Args:
        batch: the planned batch.
        logged: number and id sum of the batch's deltas in the log.
        read: number and id sum of the batch's deltas, as they were read back from the lake.

    Raises:
        IntegrityError: they differ; the batch must not be confirmed.
    """
    if logged != read:
        raise IntegrityError(
            f"batch {batch.batch_id!r}: the log has {logged.deltas} deltas with id sum {logged.id_sum}, the lake was "
            f"read as {read.deltas} with {read.id_sum}: nothing is confirmed, read the table again or flush again"
        )
