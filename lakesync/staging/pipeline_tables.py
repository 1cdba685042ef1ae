"""The tables of the data pipeline, with the same SQL in both stores: batches, the ledger, checkpoints, marks.

The stores on SQLite and Postgres call `PipelineTables` inside their transactions. `staging.store.pipeline` documents
each method and defines the terms. The *log* has one row for each push. A *flush* copies a batch of log rows to the
lake, reads the lake back, and confirms the batch to the store. The *ledger* counts deltas (changes of rows) by day of
their *arrival* (the gateway's timestamp of a commit), to compare staging with the lake. A *gateway* is one app's stream
of changes. Its *head* has its counters, such as the number of its last log row, and its *epoch*: the time of its
creation, which changes if the store is rebuilt from the lake. A *shard* is a store for some of a gateway's tables. A
*checkpoint* has all rows of a gateway as of one arrival, for new clients. A *mark* says how far a part of the pipeline
is. The *rules* decide which clients see a row; after a change of rules, a *re-index* assigns all rows to the new ones
in the background.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError, NotFoundError
from lakesync.staging.head import Head
from lakesync.staging.ledger import Tally, by_day, last_arrival_of_day, signed, total, unsigned
from lakesync.staging.records import Backlog, Batch, Checkpoint, GatewayConfig, LedgerDay
from lakesync.staging.table_values import decode_checkpoint, decode_checkpoint_rules

MAX_PUSHES = 100_000
"""The most pushes of a batch: commits wait while its log rows are read, when it is planned and when it is confirmed."""

_BATCH = "batch_id, gateway, shard, epoch, from_seq, to_seq, deltas, bytes, arrival_low, arrival_high"
"""SQL: the columns of a batch, in the order of the fields of `Batch`."""
_OF_SHARD = "WHERE gateway = ? AND shard = ? AND epoch = ? AND seq"
"""SQL: the log rows of one shard; a condition on `seq` follows."""
_LOG = f"FROM log {_OF_SHARD}"
_PUSHES_AT_ONCE = 2000
"""The most log rows in one read."""
_NEWEST_CHECKPOINT = "SELECT body FROM cut WHERE gateway = ? AND epoch = ? ORDER BY arrival DESC LIMIT 1"
"""SQL: the newest checkpoint, as JSON; the table `cut` contains the published checkpoints."""


class PipelineTables(ABC):
    """The pipeline's methods in one transaction over the database that contains the log.

    `postgres.store._PipelineTransaction` and `sqlite.store._Pipeline` implement the abstract methods.
    """

    @abstractmethod
    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for each value, and return the rows of a SELECT; empty for another statement."""

    @abstractmethod
    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""

    @abstractmethod
    def _head(self, gateway: str) -> Head:
        """Return a gateway's head; a transaction that writes has locked it.

        Raises:
            NotFoundError: there is no such gateway.
        """

    @abstractmethod
    def _set_head(self, head: Head) -> None:
        """Store a gateway's changed head."""

    @abstractmethod
    def _now_ms(self) -> int:
        """Return the server's wall time in milliseconds since 1970."""

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas, rules and write scope."""
        return self._head(gateway).config

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway, ordered by id."""
        return [self._backlog(self._head(gateway)) for gateway in self.gateways()]

    def _backlog(self, head: Head) -> Backlog:
        """Return the backlog of the gateway with this head."""
        shard = (head.gateway, head.shard, head.epoch)
        oldest = self._query(f"SELECT committed_ms, arrival {_LOG} = ?", *shard, head.flushed_seq + 1)
        oldest_ms, oldest_arrival = oldest[0] if oldest else (None, None)
        last_batch = self._query(
            "SELECT confirmed_ms, snapshot_id FROM batch WHERE gateway = ? AND shard = ? AND epoch = ? AND to_seq = ?",
            *shard,
            head.flushed_seq,
        )
        flushed_ms, flushed_snapshot = last_batch[0] if last_batch else (None, None)
        checkpoint = self._query(
            "SELECT max(arrival) FROM cut WHERE gateway = ? AND epoch = ?", head.gateway, head.epoch
        )
        return Backlog(
            gateway=head.gateway,
            shard=head.shard,
            epoch=head.epoch,
            flushed_seq=head.flushed_seq,
            last_seq=head.last_seq,
            last_arrival=head.last_arrival,
            deltas=head.deltas,
            bytes=head.bytes,
            oldest_ms=oldest_ms,
            oldest_arrival=oldest_arrival,
            flush_requested_ms=head.flush_requested_ms,
            flushed_ms=flushed_ms,
            flushed_snapshot=flushed_snapshot,
            rules_without_checkpoint=self._rules_without_checkpoint(head),
            checkpoint_arrival=checkpoint[0][0],
        )

    def _rules_without_checkpoint(self, head: Head) -> int | None:
        """Return the active rules version if a checkpoint under it is missing and can be made.

        Returns:
            The version, if the re-index for it is done and the newest checkpoint has older rules. None otherwise, and
            if there is no checkpoint: the first flush makes one anyway.
        """
        version = head.config.rules_version
        if version == 0:
            return None
        reindexed = self._query("SELECT rules_version FROM reindex WHERE gateway = ? AND done = 1", head.gateway)
        newest = self._query(_NEWEST_CHECKPOINT, head.gateway, head.epoch)
        if not newest or reindexed != [(version,)]:
            return None
        return version if decode_checkpoint_rules(newest[0][0]).rules_version < version else None

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the batch that is planned and not confirmed yet, or a new one that `choose_batch` chooses.

        Args:
            gateway: the gateway's id.
            shard: the shard's name; `main` without sharding.
            max_deltas: the most deltas of a batch of several pushes; a larger push is a batch of its own.
            through: the highest arrival that a new batch may contain; None for any.
            since: the lowest arrival at which a new batch may begin; None for any.
        """
        head = self._head_of_shard(gateway, shard)
        planned = self._query(
            f"SELECT {_BATCH} FROM batch WHERE gateway = ? AND shard = ? AND confirmed_ms IS NULL", gateway, shard
        )
        if planned:
            return Batch(*planned[0])
        batch = choose_batch(head, self._unflushed(head), max_deltas, through, since)
        if batch is not None:
            values = msgspec.structs.astuple(batch)
            self._query(f"INSERT INTO batch ({_BATCH}) VALUES ({', '.join('?' * len(values))})", *values)
        return batch

    def _unflushed(self, head: Head) -> Iterator[UnflushedPush]:
        """Yield each unflushed log row, in order."""
        seq = head.flushed_seq
        while seq < head.last_seq:
            rows = self._query(
                f"SELECT seq, arrival, count, bytes {_LOG} > ? ORDER BY seq LIMIT ?",
                *(head.gateway, head.shard, head.epoch, seq, _PUSHES_AT_ONCE),
            )
            yield from map(UnflushedPush._make, rows)
            seq = rows[-1][0]

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake contains the batch; a repeat changes nothing.

        Args:
            batch_id: the id of the planned batch.
            deltas: the number of the batch's deltas, as they were read back.
            id_sum: the sum of their id numbers (`staging.ledger`), modulo 2**64.
            snapshot_id: the Iceberg snapshot in which they were read; None if the destination has no snapshots.

        Raises:
            IntegrityError: count or sum differ from the log's.
            NotFoundError: no such batch was planned.
        """
        head = self._head(self._batch(batch_id)[0].gateway)
        # `_head` locked the gateway; read the batch again, because another process may have confirmed it before that
        batch, confirmed_ms = self._batch(batch_id)
        scope = (batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq)
        days = by_day(self._query(f"SELECT arrival, count, id_sum {_LOG} BETWEEN ? AND ?", *scope))
        check_read_back(batch, total(days.values()), Tally(deltas, id_sum))
        if confirmed_ms is not None:
            return
        self._query(
            "UPDATE batch SET confirmed_ms = ?, snapshot_id = ? WHERE batch_id = ?",
            *(self._now_ms(), snapshot_id, batch_id),
        )
        for day, tally in days.items():
            self._add_flushed(batch.gateway, day, tally)
        self._set_head(head.confirmed(batch))

    def _batch(self, batch_id: str) -> tuple[Batch, int | None]:
        """Return a batch, and the wall time in milliseconds when it was confirmed; None if it was not.

        Raises:
            NotFoundError: no such batch was planned.
        """
        found = self._query(f"SELECT {_BATCH}, confirmed_ms FROM batch WHERE batch_id = ?", batch_id)
        if not found:
            raise NotFoundError(f"no batch {batch_id!r} was planned by this store: ask for a plan")
        return Batch(*found[0][:-1]), found[0][-1]

    def _add_flushed(self, gateway: str, day: str, tally: Tally) -> None:
        """Add confirmed deltas to a day of the ledger."""
        ((count, id_sum),) = self._query(
            "SELECT flushed_count, flushed_id_sum FROM ledger WHERE gateway = ? AND day = ?", gateway, day
        )
        flushed = tally.plus(count, unsigned(id_sum))
        self._query(
            "UPDATE ledger SET flushed_count = ?, flushed_id_sum = ? WHERE gateway = ? AND day = ?",
            *(flushed.deltas, signed(flushed.id_sum), gateway, day),
        )

    def trim(self, gateway: str, shard: str, durable_seq: int | None = None) -> int:
        """Delete the log bodies of confirmed batches; return the freed bytes.

        Args:
            gateway: the gateway's id.
            shard: the shard's name; `main` without sharding.
            durable_seq: the last log row whose changes are durable outside of the log. Bodies above it are kept,
                because a replay after a crash may need them. None if no replay ever needs a body.
        """
        head = self._head_of_shard(gateway, shard)
        to_seq = head.flushed_seq if durable_seq is None else min(head.flushed_seq, durable_seq)
        if to_seq <= head.trimmed_seq:
            return 0
        crash_point("staging.before_trim")
        scope = (gateway, shard, head.epoch, head.trimmed_seq + 1, to_seq)
        ((freed,),) = self._query(f"SELECT sum(bytes) {_LOG} BETWEEN ? AND ?", *scope)
        self._query(f"UPDATE log SET body = NULL {_OF_SHARD} BETWEEN ? AND ?", *scope)
        self._set_head(msgspec.structs.replace(head, trimmed_seq=to_seq))
        return int(freed)

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested; see `PipelineStore.request_flush`."""
        self._set_head(self._head(gateway).flush_requested(self._now_ms()))

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, in order."""
        self._head(gateway)
        days = self._query(
            "SELECT day, count, id_sum, flushed_count, flushed_id_sum FROM ledger WHERE gateway = ? ORDER BY day",
            gateway,
        )
        return [
            LedgerDay(gateway, day, count, unsigned(id_sum), flushed, unsigned(flushed_sum))
            for day, count, id_sum, flushed, flushed_sum in days
        ]

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival.

        Raises:
            IntegrityError: it belongs to another epoch.
        """
        head = self._head(checkpoint.gateway)
        if checkpoint.epoch != head.epoch:
            raise IntegrityError(
                f"the checkpoint of gateway {checkpoint.gateway!r} has epoch {checkpoint.epoch}, the store "
                f"{head.epoch}: it has another store's arrivals; make a new checkpoint"
            )
        newest = self.newest_checkpoint(checkpoint.gateway)
        if newest is not None and newest.arrival >= checkpoint.arrival:
            return False
        self._query(
            "INSERT INTO cut VALUES (?, ?, ?, ?)",
            *(checkpoint.gateway, checkpoint.epoch, checkpoint.arrival, msgspec.json.encode(checkpoint)),
        )
        return True

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None before its first one."""
        head = self._head(gateway)
        found = self._query(_NEWEST_CHECKPOINT, head.gateway, head.epoch)
        return decode_checkpoint(found[0][0]) if found else None

    def marks(self) -> dict[str, str]:
        """Return mark name → JSON text: how far each part of the pipeline is."""
        return dict(self._query("SELECT name, body FROM mark ORDER BY name"))

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark, in place of the one with its name.

        Args:
            name: the mark's name (`lakehouse.marks`).
            body: how far the part of the pipeline is, as JSON text.
        """
        self._query("INSERT INTO mark VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body", name, body)

    def _head_of_shard(self, gateway: str, shard: str) -> Head:
        """Return a gateway's head.

        Raises:
            NotFoundError: there is no such gateway, or it has another shard.
        """
        head = self._head(gateway)
        if head.shard != shard:
            raise NotFoundError(f"gateway {gateway!r} has no shard {shard!r}: its shard is {head.shard!r}")
        return head


class UnflushedPush(NamedTuple):
    """What a batch is chosen by: a log row that is not in the lake yet."""

    seq: int
    """Its number in the log."""
    arrival: int
    """Its last arrival."""
    deltas: int
    """Number of deltas."""
    bytes: int
    """Stored bytes of its body."""


def choose_batch(
    head: Head,
    waiting: Iterable[UnflushedPush],
    max_deltas: int,
    through: int | None = None,
    since: int | None = None,
) -> Batch | None:
    """Return a batch over a prefix of the unflushed log: at least one push, and only pushes of one UTC day of arrival.

    The lake is partitioned by day. So a batch of one day is in one partition, and a backfill of a day flushes no other
    day.

    Args:
        head: the counters of the gateway's shard.
        waiting: the unflushed log rows, in order; read only as far as needed.
        max_deltas: the most deltas of a batch of several pushes; a larger push is a batch of its own.
        through: the highest arrival that may be included; None for any.
        since: the lowest arrival at which the batch may begin; None for any.

    Returns:
        The batch; None if the first unflushed push is below `since` or above `through`, or nothing is unflushed.
    """
    pushes: list[UnflushedPush] = []
    deltas = 0
    for push in waiting:
        if pushes and (deltas + push.deltas > max_deltas or len(pushes) == MAX_PUSHES):
            break
        if through is not None and push.arrival > through:
            break
        if not pushes:
            if since is not None and push.arrival < since:
                break
            last_of_day = last_arrival_of_day(push.arrival)
            through = last_of_day if through is None else min(through, last_of_day)
        pushes.append(push)
        deltas += push.deltas
    if not pushes:
        return None
    first, last = pushes[0], pushes[-1]
    return Batch(
        batch_id=f"{head.gateway}.{head.shard}.{head.epoch}.{first.seq}-{last.seq}",
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        from_seq=first.seq,
        to_seq=last.seq,
        deltas=deltas,
        bytes=sum(push.bytes for push in pushes),
        arrival_low=first.arrival,
        arrival_high=last.arrival,
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
