"""Protocols of a staging store for the data pipeline: Spark jobs, Dagster assets and sensors that flush to the lake.

`lakesync.flush`, the engine and the CLI call parts of them too. Every call can be repeated, and `staging.remote` offers
all of them over HTTP. A process opens a `PipelineStore`; each step declares the part that it uses.

- The *log* has one row for each push (a client's request with deltas, changes of rows), numbered by `seq`.
- A *flush* copies the log to the lake's Iceberg table `deltas`, batch by batch: `plan` a batch, write it, read it back,
  and `confirm` it. After that, `trim` deletes the bodies of its log rows.
- The *ledger* has the number of accepted deltas, and the sum of their ids, for each UTC day. So the lake's contents can
  be compared with what was accepted.
- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit. A *checkpoint* is a
  snapshot of all rows at one arrival, from which new clients start.
- A *shard* is a store with some of a gateway's tables; without sharding there is one, `main`.
- An *erasure* deletes a row, or what a client wrote, permanently. A *mark* says how far a part of the pipeline is.
- An *epoch* is one copy of a gateway in a store; a rebuild of the store from the lake begins a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lakesync.model.types import RowDelta, StoredConnector
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.records import Backlog, Batch, Checkpoint, CutPoint, Erasure, GatewayConfig, LedgerDay, LogSource


class GatewayStore(Protocol):
    """The gateways of a store, and what is registered in them."""

    def gateways(self) -> list[str]:
        """Return the ids of all gateways in the store."""

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas, rules and write scope.

        Raises:
            NotFoundError: there is no such gateway.
        """

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name.

        Their secrets are encrypted, or are `env:NAME` or `file:PATH` instead.
        """


class FlushStore(GatewayStore, Protocol):
    """The flush of the log to the lake: batches, the ledger, and the trim."""

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway and shard; 0 deltas if all are flushed."""

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the batch that is planned and not confirmed, or plan a new one over a prefix of the unflushed log.

        A planned batch does not change until it is confirmed, whatever is pushed meanwhile and whichever process calls.
        So a flush that is repeated after a crash writes the same rows. A batch contains at least one push, only pushes
        of one UTC day of arrival, and at most `max_deltas` deltas if it contains several pushes.

        Args:
            gateway: the gateway's id.
            shard: the shard's name; `main` without sharding.
            max_deltas: the most deltas of a batch of several pushes; a larger push is a batch of its own.
            through: a new batch contains no higher arrival; None for no bound.
            since: no new batch is planned if the unflushed log begins at a lower arrival; None for no bound.

        Returns:
            The batch; None if nothing is unflushed, or `through` or `since` exclude the next push.

        Raises:
            NotFoundError: the gateway does not exist, or has no such shard.
        """

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; a repeat changes nothing.

        Args:
            batch_id: the id of the planned batch.
            deltas: the number of the batch's deltas in the lake.
            id_sum: the sum of their id numbers (see `staging.ledger`), modulo 2**64.
            snapshot_id: the Iceberg snapshot in which they were read; None if the destination has no snapshots.

        Raises:
            IntegrityError: count or sum differ from the log's; nothing is changed.
            NotFoundError: no such batch was planned.
        """

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the encoded deltas of confirmed batches from the log, as far as no replay after a crash needs them.

        The ids of the deltas stay, so that a repeated push is recognised.

        Args:
            gateway: the gateway's id.
            shard: the shard's name; `main` without sharding.

        Returns:
            The number of freed bytes.

        Raises:
            NotFoundError: the gateway does not exist, or has no such shard.
        """

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas, by UTC day of arrival, in order."""

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested: `backlog` reports it until everything unflushed now is confirmed."""

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Return the JDBC address from which tasks of Spark read a shard's log.

        The table has the columns gateway, shard, epoch, seq, arrival, client_id and body.
        """


class CheckpointStore(GatewayStore, Protocol):
    """The point at which a gateway's next checkpoint can be made, and its newest checkpoint."""

    def cut_point(self, gateway: str) -> CutPoint:
        """Bring all shards of a gateway to one arrival, and return this point.

        A checkpoint can be made there once the lake contains everything that is unflushed now. A store without shards
        is at one arrival, so nothing changes.

        Raises:
            StagingUnavailableError: the shards did not meet at one arrival; a repeat may succeed.
        """

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint: gateways serve it to new clients from now on.

        Returns:
            False, without publishing it, if the epoch has a checkpoint at the same or a later arrival.

        Raises:
            IntegrityError: the checkpoint belongs to another epoch of the store.
        """

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None before its first one."""


class PipelineMarks(Protocol):
    """Marks: how far each part of the pipeline is, as JSON that only that part interprets."""

    def marks(self) -> dict[str, str]:
        """Return all marks as JSON text, by name.

        Polls, flows, tiers, migrations, destinations, audits, maintenance and the pipeline's report have marks;
        `lakehouse.marks` and `analysis.marks` have the names. `lakesync.flush` has marks of its own. A flow and a
        destination also have a mark at each adapter that they write to (`adapters.base.MarkStore`), which is
        authoritative.
        """

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark; it replaces the one with its name.

        Args:
            name: the mark's name; see `lakehouse.marks`.
            body: JSON text.
        """


class ErasureStore(GatewayStore, Protocol):
    """Erasures (permanent deletions): requests, and the lake's confirmations."""

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase all values that a row ever had from staging, and send a DELETE to the clients that have it.

        Args:
            gateway: the gateway's id.
            table: the row's table.
            row_id: the row's id.

        Raises:
            NotFoundError: there never was such a row.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erase_client(self, gateway: str, client_id: str, *, is_known: bool = False) -> Erasure:
        """Erase everything that a client ever wrote from staging, and its record.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            is_known: whether another shard knows the client. Then a shard that never saw it records the erasure too.

        Raises:
            NotFoundError: there never was such a client.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return every erasure, in order. The lake still has to execute those without `lake_ms`."""

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas that the erased ones had overwritten, so that the row has its earlier values again.

        A repeat changes no row. The erasure gets a new arrival, so that earlier checkpoints are no longer served. The
        pipeline calls it for each chunk of deltas, and last without deltas, which only assigns the new arrival.

        Args:
            gateway: the gateway's id.
            seq: the erasure's sequence number.
            deltas: the older deltas, which the pipeline has read from the lake.

        Raises:
            NotFoundError: there is no such erasure.
        """

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure; a repeat changes nothing.

        Args:
            gateway: the gateway's id.
            seq: the erasure's sequence number.

        Raises:
            NotFoundError: there is no such erasure.
        """


class PipelineStore(FlushStore, CheckpointStore, ErasureStore, PipelineMarks, Protocol):
    """All protocols of this module: a store as the pipeline opens it."""


OpenStaging = Callable[[], AbstractContextManager[PipelineStore]]
"""Opens a store in the process that calls it; it is sent to Spark's tasks as a value."""
