"""Chooses the batch that the next flush writes, and checks the lake's answer before the batch is confirmed.

The `Pipeline` classes of both stores call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakesync.model.errors import IntegrityError
from lakesync.staging.head import Head
from lakesync.staging.ledger import Tally, last_arrival_of_day
from lakesync.staging.records import Batch, Checkpoint
from lakesync.staging.table_values import decode_checkpoint_rules

MOST_PUSHES = 100_000
"""Most pushes of a batch: commits wait while its log rows are read, when it is planned and when it is confirmed."""


def choose(
    head: Head,
    waiting: Iterable[tuple[int, int, int, int]],
    max_deltas: int,
    through: int | None = None,
    since: int | None = None,
) -> Batch | None:
    """Return a batch over a prefix of the unflushed log: at least one push, and only pushes of one UTC day.

    A batch of one day is in one partition of the lake, so a backfill of a day flushes no other day.

    Args:
        head: of the shard.
        waiting: seq, arrival, count and bytes of the unflushed log rows, in order; read only as far as needed.
        max_deltas: most deltas of a batch of several pushes.
        through: the highest arrival that may be included; None for any.
        since: the lowest arrival at which the batch may begin; None for any.

    Returns:
        None if the first unflushed push is outside of `since` and `through`.
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
    """Check that the lake contains what the log contains.

    Args:
        batch: the planned batch.
        logged: the tally of the log.
        read: the tally of the lake.

    Raises:
        IntegrityError: they differ.
    """
    if logged != read:
        raise IntegrityError(
            f"batch {batch.batch_id!r}: the log has {logged.deltas} deltas with id sum {logged.id_sum}, the lake was "
            f"read as {read.deltas} with {read.id_sum}: nothing is confirmed, read the table again or flush again"
        )


REINDEXED = "SELECT rules_version FROM reindex WHERE gateway = ? AND done = 1"
"""SQL: the rules version of a re-index that has updated all rows."""


NEWEST_CHECKPOINT = "SELECT body FROM cut WHERE gateway = ? AND epoch = ? ORDER BY arrival DESC LIMIT 1"
"""SQL: the newest checkpoint of an epoch."""

CHECKPOINT_ARRIVAL = "SELECT max(arrival) FROM cut WHERE gateway = ? AND epoch = ?"
"""SQL: the arrival of that checkpoint."""


def rules_without_checkpoint(head: Head, in_line: tuple[int] | None, newest: tuple[bytes] | None) -> int | None:
    """Return the active rules version if the newest checkpoint has an older one; otherwise None.

    Args:
        head: of the gateway.
        in_line: the result of `REINDEXED`.
        newest: the newest checkpoint as it is stored; if there is none, the first flush makes one.
    """
    version = head.config.rules_version
    if newest is None or in_line != (version,) or decode_checkpoint_rules(newest[0]).rules_version >= version:
        return None
    return version


def check_checkpoint_epoch(checkpoint: Checkpoint, head: Head) -> None:
    """Check that a checkpoint belongs to the store's epoch.

    Raises:
        IntegrityError: it belongs to another epoch.
    """
    if checkpoint.epoch != head.epoch:
        raise IntegrityError(
            f"the checkpoint of gateway {checkpoint.gateway!r} has epoch {checkpoint.epoch}, the store {head.epoch}: "
            "it has another store's arrivals; make a new checkpoint"
        )
