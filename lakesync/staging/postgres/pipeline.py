"""The methods of `PipelineStore` on Postgres: batches, ledger, checkpoints, marks. `PostgresStore` calls them.

See `staging.store.pipeline` for what each method promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from psycopg import sql

from lakesync.model.crash_points import crash_point
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
from lakesync.staging.postgres.connection import Connection, Database
from lakesync.staging.postgres.journal import ConfigCache, load_head, save_head
from lakesync.staging.records import Backlog, Batch, Checkpoint, GatewayConfig, LedgerDay
from lakesync.staging.table_values import decode_checkpoint

_BATCH = "batch_id, gateway, shard, epoch, from_seq, to_seq, deltas, bytes, arrival_low, arrival_high"
_REINDEXED = sql.SQL(REINDEXED.replace("?", "%s"))
_NEWEST_CHECKPOINT = sql.SQL(NEWEST_CHECKPOINT.replace("?", "%s"))
_CHECKPOINT_ARRIVAL = sql.SQL(CHECKPOINT_ARRIVAL.replace("?", "%s"))
_ROWS = "FROM log WHERE gateway = %s AND shard = %s AND epoch = %s AND seq"


class Pipeline:
    """Batches, ledger and checkpoints; each call is one transaction."""

    def __init__(self, database: Database, wall: Callable[[], int], configs: ConfigCache) -> None:
        """Create the pipeline's methods over a database.

        Args:
            database: the pool of connections.
            wall: returns the server's wall time in milliseconds since 1970.
            configs: the cache of gateways' configurations.
        """
        self._database = database
        self._wall = wall
        self._configs = configs

    @contextmanager
    def _locked(self, gateway: str, shard: str | None = None) -> Iterator[tuple[Connection, Head]]:
        """Yield a connection with the gateway's lock, and the gateway's head.

        Raises:
            NotFoundError: the gateway does not exist, or has another shard.
        """
        with self._database.writing() as connection:
            head = load_head(connection, gateway, self._configs, lock=True)
            if shard is not None and shard != head.shard:
                raise NotFoundError(f"gateway {gateway!r} has no shard {shard!r}: its shard is {head.shard!r}")
            yield connection, head

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""
        with self._database.reading() as connection:
            return [gateway for (gateway,) in connection.execute("SELECT id FROM gateway ORDER BY id").fetchall()]

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""
        with self._database.reading() as connection:
            return load_head(connection, gateway, self._configs, lock=False).config

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway, ordered by id."""
        backlogs = []
        with self._database.reading() as connection:
            for (gateway,) in connection.execute("SELECT id FROM gateway ORDER BY id").fetchall():
                head = load_head(connection, gateway, self._configs, lock=False)
                rules = _rules_without_checkpoint(connection, head)
                row = connection.execute(_CHECKPOINT_ARRIVAL, (head.gateway, head.epoch)).fetchone()
                arrival = row[0] if row else None
                confirmed = _newest_confirmed(connection, head)
                backlogs.append(head.backlog(_oldest_ms(connection, head), *confirmed, rules, arrival))
        return backlogs

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one; see `PipelineStore.plan`."""
        with self._locked(gateway, shard) as (connection, head):
            found = connection.execute(
                f"SELECT {_BATCH} FROM batch WHERE gateway = %s AND shard = %s AND confirmed_ms IS NULL",
                (gateway, shard),
            ).fetchone()
            if found is not None:
                return Batch(*found)
            if head.last_seq == head.flushed_seq:
                return None
            with connection.cursor("waiting") as waiting:
                waiting.itersize = 500
                waiting.execute(
                    f"SELECT seq, arrival, count, bytes {_ROWS} > %s ORDER BY seq",
                    (gateway, shard, head.epoch, head.flushed_seq),
                )
                batch = choose(head, waiting, max_deltas, through, since)
            if batch is None:
                return None
            connection.execute(
                f"INSERT INTO batch ({_BATCH}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                msgspec.structs.astuple(batch),
            )
            return batch

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake contains the batch; see `PipelineStore.confirm`."""
        with self._database.writing() as connection:
            planned = _batch(connection, batch_id)
            head = load_head(connection, planned[0].gateway, self._configs, lock=True)
            batch, confirmed_ms = _batch(connection, batch_id)
            days = by_day(
                connection.execute(
                    f"SELECT arrival, count, id_sum {_ROWS} BETWEEN %s AND %s",
                    (batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq),
                ).fetchall()
            )
            check_read_back(batch, total(days.values()), Tally(deltas, id_sum))
            if confirmed_ms is not None:
                return
            connection.execute(
                "UPDATE batch SET confirmed_ms = %s, snapshot_id = %s WHERE batch_id = %s",
                (self._wall(), snapshot_id, batch_id),
            )
            for day, tally in days.items():
                _add_flushed(connection, batch.gateway, day, tally)
            save_head(connection, head.confirmed(batch))

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of confirmed batches; return the freed bytes. See `PipelineStore.trim`."""
        with self._locked(gateway, shard) as (connection, head):
            if head.flushed_seq == head.trimmed_seq:
                return 0
            crash_point("staging.before_trim")
            scope = (gateway, shard, head.epoch, head.trimmed_seq + 1, head.flushed_seq)
            found = connection.execute(f"SELECT sum(bytes)::bigint {_ROWS} BETWEEN %s AND %s", scope).fetchone()
            where = _ROWS.removeprefix("FROM log ")
            connection.execute(f"UPDATE log SET body = NULL {where} BETWEEN %s AND %s", scope)
            save_head(connection, msgspec.structs.replace(head, trimmed_seq=head.flushed_seq))
            return int(found[0]) if found else 0

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, in order."""
        with self._database.reading() as connection:
            load_head(connection, gateway, self._configs, lock=False)
            days = connection.execute(
                "SELECT day, count, id_sum, flushed_count, flushed_id_sum FROM ledger WHERE gateway = %s ORDER BY day",
                (gateway,),
            ).fetchall()
        return [
            LedgerDay(gateway, day, count, unsigned(id_sum), flushed, unsigned(flushed_sum))
            for day, count, id_sum, flushed, flushed_sum in days
        ]

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested."""
        with self._locked(gateway) as (connection, head):
            save_head(connection, head.flush_requested(self._wall()))

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""
        with self._locked(checkpoint.gateway) as (connection, head):
            check_checkpoint_epoch(checkpoint, head)
            newest = _newest_checkpoint(connection, head)
            if newest is not None and newest.arrival >= checkpoint.arrival:
                return False
            connection.execute(
                "INSERT INTO cut VALUES (%s, %s, %s, %b)",
                (checkpoint.gateway, checkpoint.epoch, checkpoint.arrival, msgspec.json.encode(checkpoint)),
            )
            return True

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None if there is none."""
        with self._database.reading() as connection:
            return _newest_checkpoint(connection, load_head(connection, gateway, self._configs, lock=False))

    def marks(self) -> dict[str, str]:
        """Return how far each part of the pipeline is, by name; see `PipelineStore.marks`."""
        with self._database.reading() as connection:
            return dict(connection.execute("SELECT name, body FROM mark ORDER BY name").fetchall())

    def put_mark(self, name: str, body: str) -> None:
        """Store how far a part of the pipeline is; see `PipelineStore.put_mark`."""
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO mark VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET body = excluded.body", (name, body)
            )


def _batch(connection: Connection, batch_id: str) -> tuple[Batch, int | None]:
    """Return a planned batch, and the wall time in milliseconds when it was confirmed; None if it was not.

    Raises:
        NotFoundError: no such batch was planned.
    """
    query = f"SELECT {_BATCH}, confirmed_ms FROM batch WHERE batch_id = %s"
    found = connection.execute(query, (batch_id,)).fetchone()
    if found is None:
        raise NotFoundError(f"no batch {batch_id!r} was planned by this store: ask for a plan")
    return Batch(*found[:-1]), found[-1]


def _oldest_ms(connection: Connection, head: Head) -> int | None:
    """Return the wall time in milliseconds of the oldest unflushed push; None if there is none."""
    scope = (head.gateway, head.shard, head.epoch, head.flushed_seq + 1)
    found = connection.execute(f"SELECT committed_ms {_ROWS} = %s", scope).fetchone()
    return found[0] if found else None


def _newest_confirmed(connection: Connection, head: Head) -> tuple[int | None, int | None]:
    """Return the wall time in milliseconds when the newest batch was confirmed, and its Iceberg snapshot."""
    found = connection.execute(
        "SELECT confirmed_ms, snapshot_id FROM batch WHERE gateway = %s AND shard = %s AND epoch = %s AND to_seq = %s",
        (head.gateway, head.shard, head.epoch, head.flushed_seq),
    ).fetchone()
    return found or (None, None)


def _rules_without_checkpoint(connection: Connection, head: Head) -> int | None:
    """Return the active rules version if a new checkpoint is due for it; otherwise None."""
    if head.config.rules_version == 0:
        return None
    reindexed = connection.execute(_REINDEXED, (head.gateway,)).fetchone()
    return rules_without_checkpoint(head, reindexed, _stored_checkpoint(connection, head))


def _add_flushed(connection: Connection, gateway: str, day: str, tally: Tally) -> None:
    """Add confirmed deltas to a day of the ledger."""
    query = "SELECT flushed_count, flushed_id_sum FROM ledger WHERE gateway = %s AND day = %s"
    found = connection.execute(query, (gateway, day)).fetchone() or (0, 0)
    flushed = tally.plus(found[0], unsigned(found[1]))
    connection.execute(
        "UPDATE ledger SET flushed_count = %s, flushed_id_sum = %s WHERE gateway = %s AND day = %s",
        (flushed.deltas, signed(flushed.id_sum), gateway, day),
    )


def _newest_checkpoint(connection: Connection, head: Head) -> Checkpoint | None:
    found = _stored_checkpoint(connection, head)
    return decode_checkpoint(found[0]) if found else None


def _stored_checkpoint(connection: Connection, head: Head) -> tuple[bytes] | None:
    found: tuple[bytes] | None = connection.execute(_NEWEST_CHECKPOINT, (head.gateway, head.epoch)).fetchone()
    return found
