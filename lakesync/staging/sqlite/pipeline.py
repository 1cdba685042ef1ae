"""The methods of `PipelineStore` on `log.db`: batches, ledger, checkpoints, marks. `SqliteStore` calls them.

See `staging.store.pipeline` for what each method promises.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakesync.model.errors import NotFoundError
from lakesync.staging.flush_batch import (
    CHECKPOINT_ARRIVAL,
    NEWEST_CHECKPOINT,
    REINDEXED,
    check_checkpoint_epoch,
    check_read_back,
    choose,
    rules_without_checkpoint,
)
from lakesync.staging.head import Head
from lakesync.staging.ledger import Tally, by_day, signed, total, unsigned
from lakesync.staging.records import Backlog, Batch, Checkpoint, LedgerDay
from lakesync.staging.sqlite.journal import Journal
from lakesync.staging.table_values import decode_checkpoint

_BATCH = "batch_id, gateway, shard, epoch, from_seq, to_seq, deltas, bytes, arrival_low, arrival_high"
_WAITING = (
    "SELECT seq, arrival, count, bytes FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq > ? ORDER BY seq"
)
_TALLIES = (
    "SELECT arrival, count, id_sum FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq BETWEEN ? AND ?"
)


class Pipeline:
    """Batches, ledger and checkpoints in `log.db`. Only the thread that owns the store calls its methods."""

    def __init__(self, journal: Journal) -> None:
        """Create it over the store's journal, `log.db`."""
        self._journal = journal
        self._sql = journal.sql

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway, ordered by id."""
        heads = [head for _, head in sorted(self._journal.heads.items())]
        return [
            head.backlog(
                self._oldest_ms(head),
                *self._flushed(head),
                self._rules_without_checkpoint(head),
                self._checkpoint_arrival(head),
            )
            for head in heads
        ]

    def _oldest_ms(self, head: Head) -> int | None:
        """Return the wall time in milliseconds of the oldest unflushed push; None if there is none."""
        found = self._sql.execute(
            "SELECT committed_ms FROM log WHERE gateway = ? AND shard = ? AND epoch = ? AND seq = ?",
            (head.gateway, head.shard, head.epoch, head.flushed_seq + 1),
        ).fetchone()
        return found[0] if found else None

    def _flushed(self, head: Head) -> tuple[int | None, int | None]:
        """Return the wall time in milliseconds when the newest batch was confirmed, and its Iceberg snapshot."""
        found = self._sql.execute(
            "SELECT confirmed_ms, snapshot_id FROM batch WHERE gateway = ? AND shard = ? AND epoch = ? AND to_seq = ?",
            (head.gateway, head.shard, head.epoch, head.flushed_seq),
        ).fetchone()
        return found or (None, None)

    def _checkpoint_arrival(self, head: Head) -> int | None:
        found: tuple[int | None] = self._sql.execute(CHECKPOINT_ARRIVAL, (head.gateway, head.epoch)).fetchone()
        return found[0]

    def _rules_without_checkpoint(self, head: Head) -> int | None:
        """Return the active rules version if a new checkpoint is due for it; otherwise None."""
        if head.config.rules_version == 0:
            return None
        reindexed = self._sql.execute(REINDEXED, (head.gateway,)).fetchone()
        return rules_without_checkpoint(head, reindexed, self._stored_checkpoint(head))

    def open_batch(self, head: Head) -> Batch | None:
        """Return the batch that was planned and is not confirmed; None if there is none."""
        found = self._sql.execute(
            f"SELECT {_BATCH} FROM batch WHERE gateway = ? AND shard = ? AND confirmed_ms IS NULL",
            (head.gateway, head.shard),
        ).fetchone()
        return Batch(*found) if found else None

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one; see `PipelineStore.plan`."""
        self._journal.direct()
        head = self._shard(gateway, shard)
        planned = self.open_batch(head)
        if planned is not None or head.last_seq == head.flushed_seq:
            return planned
        waiting = self._sql.execute(_WAITING, (gateway, shard, head.epoch, head.flushed_seq))
        batch = choose(head, waiting, max_deltas, through, since)
        if batch is None:
            return None
        self._sql.execute(
            f"INSERT INTO batch ({_BATCH}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(batch)
        )
        return batch

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake contains the batch; see `PipelineStore.confirm`."""
        self._journal.direct()
        found = self._sql.execute(
            f"SELECT {_BATCH}, confirmed_ms FROM batch WHERE batch_id = ?", (batch_id,)
        ).fetchone()
        if found is None:
            raise NotFoundError(f"no batch {batch_id!r} was planned by this store: ask for a plan")
        batch, confirmed_ms = Batch(*found[:-1]), found[-1]
        days = by_day(
            self._sql.execute(_TALLIES, (batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq))
        )
        check_read_back(batch, total(days.values()), Tally(deltas, id_sum))
        if confirmed_ms is not None:
            return
        self._sql.execute(
            "UPDATE batch SET confirmed_ms = ?, snapshot_id = ? WHERE batch_id = ?",
            (self._journal.wall(), snapshot_id, batch_id),
        )
        for day, tally in days.items():
            self._add_flushed(batch.gateway, day, tally)
        self._journal.set_head(self._journal.head(batch.gateway).confirmed(batch))

    def _add_flushed(self, gateway: str, day: str, tally: Tally) -> None:
        """Add confirmed deltas to a day of the ledger."""
        key = (gateway, day)
        count, id_sum = self._sql.execute(
            "SELECT flushed_count, flushed_id_sum FROM ledger WHERE gateway = ? AND day = ?", key
        ).fetchone()
        flushed = tally.plus(count, unsigned(id_sum))
        self._sql.execute(
            "UPDATE ledger SET flushed_count = ?, flushed_id_sum = ? WHERE gateway = ? AND day = ?",
            (flushed.deltas, signed(flushed.id_sum), *key),
        )

    def trim(self, gateway: str, shard: str, applied_seq: int) -> int:
        """Delete log bodies that are in the lake and applied to `state.db`; return the freed bytes.

        Args:
            gateway: the gateway's id.
            shard: the shard's name; `main` without sharding.
            applied_seq: the last log row that `state.db` durably contains: a replay needs no body up to here.

        Raises:
            NotFoundError: the gateway does not exist, or has another shard.
        """
        self._journal.direct()
        head = self._shard(gateway, shard)
        to_seq = min(head.flushed_seq, applied_seq)
        if to_seq <= head.trimmed_seq:
            return 0
        scope = (gateway, shard, head.epoch, head.trimmed_seq + 1, to_seq)
        where = "gateway = ? AND shard = ? AND epoch = ? AND seq BETWEEN ? AND ?"
        (freed,) = self._sql.execute(f"SELECT sum(bytes) FROM log WHERE {where}", scope).fetchone()
        self._sql.execute(f"UPDATE log SET body = NULL WHERE {where}", scope)
        self._journal.set_head(msgspec.structs.replace(head, trimmed_seq=to_seq))
        return int(freed)

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested."""
        self._journal.set_head(self._journal.head(gateway).flush_requested(self._journal.wall()))

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, in order."""
        self._journal.head(gateway)
        rows: Iterable[tuple[str, int, int, int, int]] = self._sql.execute(
            "SELECT day, count, id_sum, flushed_count, flushed_id_sum FROM ledger WHERE gateway = ? ORDER BY day",
            (gateway,),
        )
        return [
            LedgerDay(gateway, day, count, unsigned(id_sum), flushed, unsigned(flushed_sum))
            for day, count, id_sum, flushed, flushed_sum in rows
        ]

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""
        self._journal.direct()
        check_checkpoint_epoch(checkpoint, self._journal.head(checkpoint.gateway))
        newest = self.newest_checkpoint(checkpoint.gateway)
        if newest is not None and newest.arrival >= checkpoint.arrival:
            return False
        self._sql.execute(
            "INSERT INTO cut VALUES (?, ?, ?, ?)",
            (checkpoint.gateway, checkpoint.epoch, checkpoint.arrival, msgspec.json.encode(checkpoint)),
        )
        return True

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None if there is none."""
        found = self._stored_checkpoint(self._journal.head(gateway))
        return decode_checkpoint(found[0]) if found else None

    def marks(self) -> dict[str, str]:
        """Return how far each part of the pipeline is, by name; see `PipelineStore.marks`."""
        return dict(self._sql.execute("SELECT name, body FROM mark ORDER BY name"))

    def put_mark(self, name: str, body: str) -> None:
        """Store how far a part of the pipeline is; see `PipelineStore.put_mark`."""
        self._journal.direct()
        self._sql.execute("INSERT OR REPLACE INTO mark VALUES (?, ?)", (name, body))

    def _stored_checkpoint(self, head: Head) -> tuple[bytes] | None:
        found: tuple[bytes] | None = self._sql.execute(NEWEST_CHECKPOINT, (head.gateway, head.epoch)).fetchone()
        return found

    def _shard(self, gateway: str, shard: str) -> Head:
        """Return a gateway's head; raises NotFoundError if it has another shard."""
        head = self._journal.head(gateway)
        if head.shard != shard:
            raise NotFoundError(f"gateway {gateway!r} has no shard {shard!r}: its shard is {head.shard!r}")
        return head
