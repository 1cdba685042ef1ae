"""The methods for the data pipeline that the stores on SQLite and on Postgres share.

`SqliteStore` and `PostgresStore` inherit from `BaseStore`, and implement `_read_tables` and `_write_tables`: each runs
a function over those tables of the store that the pipeline uses (`PipelineTables`) in a transaction.
`staging.store.pipeline` says what each method promises.

A *gateway* is one app's stream of changes. The *log* has one row for each push, a client's request with deltas (changes
of rows). A *flush* copies it to the lake (Iceberg tables) in *batches*: it plans a batch, writes it, reads it back,
confirms it to the store, and then trims the log: the store deletes the bodies of its log rows. A *shard* is a store
with some of a gateway's tables; without sharding there is one, `main`. An *arrival* is the gateway's own timestamp of a
commit. A *checkpoint* has all rows of a gateway as of one arrival, for new clients. An *epoch* is one copy of a gateway
in a store; a rebuild from the lake begins a new one. A *mark* says how far a part of the pipeline is. A *connector* is
a configured external system that clients' actions or polls use.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from lakesync.model.types import StoredConnector
from lakesync.staging.cut_point import cut_point_of
from lakesync.staging.erasing_store import ErasingStore
from lakesync.staging.pipeline_tables import PipelineTables
from lakesync.staging.records import Backlog, Batch, Checkpoint, CutPoint, GatewayConfig, LedgerDay

T = TypeVar("T")


class BaseStore(ErasingStore):
    """Base class of `SqliteStore` and `PostgresStore`."""

    @abstractmethod
    def _read_tables(self, run: Callable[[PipelineTables], T]) -> T:
        """Return the result of `run`, given the store's tables in a consistent read."""

    @abstractmethod
    def _write_tables(self, run: Callable[[PipelineTables], T]) -> T:
        """Return the result of `run`, given the store's tables in a transaction, once that is durable."""

    def gateways(self) -> list[str]:
        """Return the ids of all gateways, sorted."""
        return self._read_tables(lambda tables: tables.gateways())

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""
        return self._read_tables(lambda tables: tables.gateway_config(gateway))

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""
        return self.read(gateway, lambda view: view.connectors()).result()

    def backlog(self) -> list[Backlog]:
        """Return size and age of the unflushed deltas of each gateway, ordered by id."""
        return self._read_tables(lambda tables: tables.backlog())

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the batch that is planned and not confirmed, or a new one, which is durable before it is returned.

        Args:
            gateway: the gateway's id.
            shard: the shard's name.
            max_deltas: the most deltas of a batch of several pushes; a larger push is a batch of its own.
            through: the highest arrival that a new batch may contain; None for any.
            since: the lowest arrival at which a new batch may begin; None for any.

        Returns:
            The batch; None if nothing can be flushed.
        """
        return self._write_tables(lambda tables: tables.plan(gateway, shard, max_deltas, through, since))

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; see `PipelineStore.confirm`.

        Args:
            batch_id: the id of the planned batch.
            deltas: the number of the batch's deltas in the lake.
            id_sum: the sum of their id numbers (`model.delta.id_number`), modulo 2**64.
            snapshot_id: the Iceberg snapshot in which they were read; None if the destination has no snapshots.
        """
        self._write_tables(lambda tables: tables.confirm(batch_id, deltas, id_sum, snapshot_id))

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of confirmed batches; return the freed bytes. See `PipelineStore.trim`."""
        return self._write_tables(lambda tables: tables.trim(gateway, shard))

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, in order."""
        return self._read_tables(lambda tables: tables.ledger(gateway))

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested, if anything is unflushed; see `PipelineStore.request_flush`."""
        self._write_tables(lambda tables: tables.request_flush(gateway))

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the gateway's cut point: every push so far has an arrival up to it, every later push one above it."""
        return self.read(gateway, cut_point_of).result()

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""
        return self._write_tables(lambda tables: tables.publish_checkpoint(checkpoint))

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch; None before its first one."""
        return self._read_tables(lambda tables: tables.newest_checkpoint(gateway))

    def marks(self) -> dict[str, str]:
        """Return mark name → JSON text: how far each part of the pipeline is."""
        return self._read_tables(lambda tables: tables.marks())

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark, in place of the one with its name.

        Args:
            name: the mark's name (`lakehouse.marks`).
            body: how far the part of the pipeline is, as JSON text.
        """
        self._write_tables(lambda tables: tables.put_mark(name, body))
