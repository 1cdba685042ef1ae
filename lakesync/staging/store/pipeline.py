"""Protocols for the data pipeline: the Spark jobs, Dagster assets and sensors that bring staging's log to the lake.

Every call can be repeated, and `staging.remote` offers all of them over HTTP. A process opens a `PipelineStore`; each
step declares the part that it uses.
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
        """Every gateway id of the store."""

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name.

        Secrets in them are sealed, or references.
        """


class FlushStore(GatewayStore, Protocol):
    """The log on its way to the lake: batches, the ledger, and the trim."""

    def backlog(self) -> list[Backlog]:
        """Return each shard's backlog, also of gateways with nothing unflushed."""

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one over a prefix of the unflushed log; None if nothing is unflushed.

        A planned batch does not change until it is confirmed, whatever is pushed meanwhile and whichever process calls.
        It contains at least one push, only pushes of one UTC day of arrival, and otherwise at most `max_deltas`.

        Args:
            gateway: the gateway's id.
            shard: of the gateway.
            max_deltas: most deltas of a batch of several pushes.
            through: a new batch contains no higher arrival; None for no bound.
            since: no new batch is planned if the unflushed log begins at a lower arrival; None for no bound.
        """

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; a repeat changes nothing.

        Args:
            batch_id: the batch's id.
            deltas: count of the batch's deltas in the lake.
            id_sum: sum of their id numbers, modulo 2**64.
            snapshot_id: the Iceberg snapshot that was read.

        Raises:
            IntegrityError: count or sum differ from the log's; nothing is changed.
            NotFoundError: no such batch was planned.
        """

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the bodies of confirmed batches that are in `state.db` too; ids stay. Return the freed bytes."""

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return every arrival day of a gateway, in order."""

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested: `backlog` reports it until a batch up to now is confirmed."""

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Return where tasks read a shard's log.

        The table has the columns gateway, shard, epoch, seq, arrival, client_id and body.
        """


class CheckpointStore(GatewayStore, Protocol):
    """Where checkpoints can be made, and the newest one."""

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the point at which a checkpoint can be made once the lake contains everything that is unflushed now.

        Shards that are behind advance to the arrival of the others.

        Raises:
            StagingUnavailableError: the shards did not meet at one arrival; a repeat may succeed.
        """

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch."""


class PipelineMarks(Protocol):
    """How far each consumer of the lake is."""

    def marks(self) -> dict[str, str]:
        """Return the stored marks, name to JSON text: those of followers of the lake, and the pipeline's report."""

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark; it replaces one with its name."""


class ErasureStore(GatewayStore, Protocol):
    """Requests of erasures, and what the lake reports of them."""

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase all values that a row ever had from staging, and send a DELETE to the clients that have it.

        Raises:
            NotFoundError: there never was such a row.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erase_client(self, gateway: str, client_id: str) -> Erasure:
        """Erase everything that a client ever wrote from staging, and its record.

        Raises:
            NotFoundError: there never was such a client.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return every erasure, in order. The lake still has to execute those without `lake_ms`."""

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas, read from the lake, that an erasure's deltas had overwritten; a repeat changes no row.

        The erasure gets a new arrival, so that earlier checkpoints are no longer served.

        Raises:
            NotFoundError: there is no such erasure.
        """

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure; a repeat changes nothing.

        Raises:
            NotFoundError: there is no such erasure.
        """


class PipelineStore(FlushStore, CheckpointStore, ErasureStore, PipelineMarks, Protocol):
    """All protocols of this module: a store as the pipeline opens it."""


OpenStaging = Callable[[], AbstractContextManager[PipelineStore]]
"""Opens a store in the process that calls it; it is sent to Spark's tasks as a value."""
