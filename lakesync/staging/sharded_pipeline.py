"""The methods for the data pipeline of a store that consists of one store per shard.

A *gateway* is one app's stream of changes. A *shard* is a staging store with some of the tables of every gateway.
`ShardedStore` inherits from `ShardedPipeline`, which implements `PipelineStore`: most methods call the store of one
shard, or combine the results of all of them. `staging.store.pipeline` says what each method promises.

A *flush* copies a shard's log of pushes to the lake (Iceberg tables) in *batches*, each of which is planned, written,
read back and confirmed; then the store trims it, which deletes its bodies from the log. An *arrival* is a gateway's
timestamp of a commit. A *checkpoint* has all rows of a gateway as of one arrival, for new clients, and a *cut point* is
an arrival at which one can be made. An *erasure* deletes a row's or a client's data permanently. The *ledger* counts
the deltas (changes of rows) of each day, to compare staging with the lake. A *mark* says how far a part of the pipeline
is. An *epoch* is one copy of a gateway in a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lakesync.model.errors import IntegrityError, NotFoundError
from lakesync.model.types import RowDelta, StoredConnector
from lakesync.staging.cut_point import common_cut_point
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.ledger import Tally
from lakesync.staging.records import (
    Backlog,
    Batch,
    Checkpoint,
    CutPoint,
    Erasure,
    GatewayConfig,
    LedgerDay,
    LogSource,
    ShardCutPoint,
)
from lakesync.staging.shards import ShardMap
from lakesync.staging.store import StagingStore

_SEQ_BITS = 32
"""Each shard numbers its own erasures from 1. The `seq` of an erasure of the sharded gateway has that number in its
lowest 32 bits, and the shard's `ShardMap.numbers` in the bits above."""


class ShardedPipeline:
    """The methods of `PipelineStore` over several stores."""

    def __init__(self, shards: ShardMap, stores: Mapping[str, StagingStore]) -> None:
        """Create it.

        Args:
            shards: which tables belong to which shard.
            stores: the store of each shard, by shard name, the default shard first.
        """
        self.shards = shards
        self.stores = dict(stores)
        """By shard name, the default shard first."""

    @property
    def default_store(self) -> StagingStore:
        """The store of the default shard, which is authoritative for everything that shards have in common."""
        return self.stores[self.shards.default]

    def gateways(self) -> list[str]:
        """Return the ids of all gateways."""
        return self.default_store.gateways()

    def backlog(self) -> list[Backlog]:
        """Return the backlog of each gateway and shard, ordered by gateway."""
        backlogs = [each for store in self.stores.values() for each in store.backlog()]
        return sorted(backlogs, key=lambda each: each.gateway)

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""
        return self.default_store.gateway_config(gateway)

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""
        return self.default_store.connectors(gateway)

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return a shard's batch that is planned and not confirmed, or a new one; see `PipelineStore.plan`.

        Args:
            gateway: the gateway's id.
            shard: the shard's name.
            max_deltas: the most deltas of a batch of several pushes.
            through: the highest arrival that a new batch may contain; None for any.
            since: the lowest arrival at which a new batch may begin; None for any.
        """
        return self._store_of_shard(shard).plan(gateway, shard, max_deltas, through, since)

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; see `PipelineStore.confirm`."""
        # a batch id is GATEWAY.SHARD.EPOCH.RANGE; one of another form is left to the default shard, which rejects it
        shard = batch_id.split(".")[1] if batch_id.count(".") > 1 else ""
        self._store_of_shard(shard).confirm(batch_id, deltas, id_sum, snapshot_id)

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the log bodies of a shard's confirmed batches; return the freed bytes. See `PipelineStore.trim`."""
        return self._store_of_shard(shard).trim(gateway, shard)

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return counts and id sums of a gateway's deltas by UTC day of arrival, summed over all shards."""
        days: dict[str, LedgerDay] = {}
        for store in self.stores.values():
            for day in store.ledger(gateway):
                days[day.day] = _sum(days[day.day], day) if day.day in days else day
        return [days[day] for day in sorted(days)]

    def request_flush(self, gateway: str) -> None:
        """Record that a flush of every shard was requested; see `PipelineStore.request_flush`."""
        for store in self.stores.values():
            store.request_flush(gateway)

    def cut_point(self, gateway: str) -> CutPoint:
        """Bring all shards to one arrival, and return this point; see `PipelineStore.cut_point`."""
        return common_cut_point(gateway, self.stores)

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish each shard's part of a checkpoint; return False if any shard has this or a later one.

        The parts are not published in one transaction, and need not be. A client's cursor means a cursor in each shard,
        so a new part can be served beside an older part of another shard. A repeat publishes the parts that a crash
        left out.

        Raises:
            IntegrityError: the checkpoint lacks the cut point of a shard.
        """
        missing = [name for name in self.stores if name not in checkpoint.shards]
        if missing:
            raise IntegrityError(
                f"the checkpoint of gateway {checkpoint.gateway!r} at {checkpoint.arrival} lacks the cut points of "
                f"{', '.join(missing)}: make it at the point that `cut_point` returned"
            )
        parts = [self.stores[name].publish_checkpoint(_part_of(checkpoint, name, self.shards)) for name in self.stores]
        return all(parts)

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest checkpoints of all shards as one, at their lowest arrival; None while a shard has none."""
        newest = {name: store.newest_checkpoint(gateway) for name, store in self.stores.items()}
        checkpoints = {name: checkpoint for name, checkpoint in newest.items() if checkpoint is not None}
        if len(checkpoints) < len(newest):
            return None
        return msgspec.structs.replace(
            checkpoints[self.shards.default],
            arrival=min(checkpoint.arrival for checkpoint in checkpoints.values()),
            tables=tuple(
                sorted(
                    (table for checkpoint in checkpoints.values() for table in checkpoint.tables),
                    key=lambda table: table.table,
                )
            ),
            shards={
                name: ShardCutPoint(checkpoint.epoch, checkpoint.rules_version)
                for name, checkpoint in checkpoints.items()
            },
        )

    def marks(self) -> dict[str, str]:
        """Return mark name → JSON text, from the default shard: how far each part of the pipeline is."""
        return self.default_store.marks()

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark in the default shard, in place of the one with its name.

        Args:
            name: the mark's name (`lakehouse.marks`).
            body: how far the part of the pipeline is, as JSON text.
        """
        self.default_store.put_mark(name, body)

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Return the JDBC address from which tasks of Spark read a shard's log."""
        return self._store_of_shard(shard).log_source(shard)

    # -- erasure -----------------------------------------------------------------------------------------------------

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase a row in its table's shard; see `PipelineStore.erase_row`."""
        name = self.shards.of(table)
        return self._with_own_seq(name, self.stores[name].erase_row(gateway, table, row_id))

    def erase_client(self, gateway: str, client_id: str, *, is_known: bool = False) -> Erasure:
        """Erase a client in every shard, as one erasure each, also in those that never saw it.

        Returns:
            The erasure of the first shard that knows the client, with the counts of all shards.

        Raises:
            NotFoundError: no shard ever saw the client.
        """
        done: list[Erasure] = []
        unknown: dict[str, NotFoundError] = {}
        for name, store in self.stores.items():
            try:
                done.append(self._with_own_seq(name, store.erase_client(gateway, client_id, is_known=is_known)))
            except NotFoundError as error:
                unknown[name] = error
        if not done:
            raise next(iter(unknown.values()))
        done += [
            self._with_own_seq(name, self.stores[name].erase_client(gateway, client_id, is_known=True))
            for name in unknown
        ]
        return msgspec.structs.replace(
            done[0],
            arrival=max(each.arrival for each in done),
            deltas=sum(each.deltas for each in done),
            row_count=sum(each.row_count for each in done),
        )

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return every erasure, shard by shard."""
        return [
            self._with_own_seq(name, each) for name, store in self.stores.items() for each in store.erasures(gateway)
        ]

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas that the erased ones had overwritten, in the erasure's shard.

        Raises:
            NotFoundError: there is no such erasure.
        """
        name, shard_seq = self._split_seq(gateway, seq)
        return self._with_own_seq(name, self.stores[name].restore(gateway, shard_seq, deltas))

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure.

        Raises:
            NotFoundError: there is no such erasure.
        """
        name, shard_seq = self._split_seq(gateway, seq)
        self.stores[name].confirm_erasure(gateway, shard_seq)

    def _split_seq(self, gateway: str, seq: int) -> tuple[str, int]:
        """Return the name of an erasure's shard, and the erasure's number in that shard.

        Raises:
            NotFoundError: the number has no shard.
        """
        number, shard_seq = seq >> _SEQ_BITS, seq & ((1 << _SEQ_BITS) - 1)
        for name, of_shard in self.shards.numbers.items():
            if of_shard == number:
                return name, shard_seq
        raise NotFoundError(f"gateway {gateway!r} has no erasure {seq}")

    def _with_own_seq(self, name: str, erasure: Erasure) -> Erasure:
        """Return a shard's erasure as one of the sharded gateway, which has its own `seq` and names its shards.

        Args:
            name: the shard's name.
            erasure: the erasure, as the shard's store returned it.
        """
        # the default shard may have gateways from before tables were sharded, whose log rows have the name `main`
        shards = (name, MAIN_SHARD) if name == self.shards.default else (name,)
        return msgspec.structs.replace(erasure, seq=self.shards.numbers[name] << _SEQ_BITS | erasure.seq, shards=shards)

    def _store_of_shard(self, shard: str) -> StagingStore:
        """Return a shard's store. Gateways that were created before sharding belong to the default one."""
        return self.stores.get(shard, self.default_store)


def _part_of(checkpoint: Checkpoint, shard: str, shards: ShardMap) -> Checkpoint:
    """Return one shard's part of a checkpoint: its tables, with its own epoch and rules version."""
    point = checkpoint.shards[shard]
    return msgspec.structs.replace(
        checkpoint,
        epoch=point.epoch,
        rules_version=point.rules_version,
        tables=tuple(table for table in checkpoint.tables if shards.of(table.table) == shard),
        shards={},
    )


def _sum(one: LedgerDay, other: LedgerDay) -> LedgerDay:
    """Return the sum of the ledger of one day in two shards."""
    accepted = Tally(one.count, one.id_sum).plus(other.count, other.id_sum)
    flushed = Tally(one.flushed_count, one.flushed_id_sum).plus(other.flushed_count, other.flushed_id_sum)
    return LedgerDay(one.gateway, one.day, *accepted, *flushed)
