"""`ShardedGateway`: one gateway over several staging stores.

A *gateway* is one app's stream of changes. A *shard* is a staging store (a database that pushes are committed to) with
some of its tables. A *checkpoint* has all rows of a gateway as of one *arrival*, the gateway's own timestamp of a
commit. `Engine` creates a `ShardedGateway` instead of a `SyncGateway` if tables are sharded. It forwards each operation
to the shards' gateways. It translates the client's *cursor*, from which the client pulls next, into one cursor for each
shard (`vectors`). The operations over several shards are generators (`Steps`) in the other modules of this package:
they yield futures and get their results, and `engine.futures.run` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace as with_fields

from lakesync.engine.checks import EngineLimits, check_client, check_page_size
from lakesync.engine.futures import Steps, run
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.gateway_base import SharedParts
from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.explanation import Explanation
from lakesync.engine.inspection.lag import LagQuery, Unsent
from lakesync.engine.inspection.peek import PeekPage
from lakesync.engine.page_reading import PullRequest
from lakesync.engine.pushing import PushRequest
from lakesync.engine.sharding import inspection, pulling, pushing, subscriptions
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.vectors import IssuedCursor, Vectors
from lakesync.engine.subscribers import Newcomer, ScanResult, SubscriberGroup, SubscriptionState
from lakesync.model.errors import LakeSyncError, NotFoundError, SchemaError
from lakesync.model.schema import TableSchema, evolve, parse_schema
from lakesync.model.types import Claims, PushResult, RowDelta, SyncPage
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Checkpoint, GatewayConfig, WriteScope
from lakesync.staging.records.configuration import with_schema
from lakesync.staging.sharded import ShardedStore


class ShardedGateway(SyncGateway):
    """A gateway over several shards. Each table belongs to one shard, which has a `ShardGateway` of its own.

    Clients see no difference: their cursor means a cursor in each shard. Each method that is overridden here takes the
    arguments, and returns and raises the same, as that of `SyncGateway`; also, it raises StagingUnavailableError if a
    shard that it needs cannot be reached.

    Schemas, rules and the write scope are set in every shard; those of the default shard are authoritative. Methods
    that are not overridden use the default shard's store: it has the actions, the connectors, and the records of
    clients' cursors.
    """

    def __init__(
        self,
        gateway_id: str,
        store: ShardedStore,
        limits: EngineLimits,
        shared: SharedParts,
    ) -> None:
        """Create the gateway and its shards' gateways.

        Args:
            gateway_id: the gateway's id.
            store: the store of all shards.
            limits: limits of requests and of the backlog.
            shared: what the gateways of an engine share.
        """
        super().__init__(gateway_id, store, limits, shared)
        self._shard_map = store.shards
        self._shards = {
            name: ShardGateway(gateway_id, each, limits, shared._replace(outlet=None))
            for name, each in store.stores.items()
        }
        self._vectors = Vectors(gateway_id, store.default_store, shared.wall, self.rules)

    @property
    def _default_shard(self) -> ShardGateway:
        """The gateway of the default shard."""
        return self._shards[self._shard_map.default]

    # -- push and pull -----------------------------------------------------------------------------------------------

    @property
    def newest_arrival(self) -> int:
        """Like `SyncGateway.newest_arrival`, over all shards."""
        return max(shard.newest_arrival for shard in self._shards.values())

    def _push(self, check: Callable[[], PushRequest]) -> Future[PushResult]:
        """Push to the shards of the push's tables, after all of them accepted it; see `sharding.pushing`.

        The generator is given the future of its result, because the caller may cancel the push until it is stored.
        """
        request = check()  # immediately, because the tables of the deltas decide which shards commit them
        outcome: Future[PushResult] = Future()
        return run(pushing.push(self._shards, self._shard_map, self._vectors, request, outcome), outcome)

    def submit_page(self, request: PullRequest) -> Future[SyncPage]:
        """Like `SyncGateway.submit_page`, over all shards."""
        return run(pulling.pull(self._shards, self._vectors, request))

    def submit_peek(self, claims: Claims, since: str | None, limit: int) -> Future[PeekPage]:
        """Like `SyncGateway.submit_peek`: reads one shard after another."""
        check_page_size(limit)
        return run(pulling.peek(self._shards, claims, since, limit))

    def submit_unsent(self, queries: Sequence[LagQuery]) -> Future[list[Unsent | None]]:
        """Like `SyncGateway.submit_unsent`: the oldest change in any shard."""
        return run(inspection.oldest_unsent(self._shards, self._vectors, queries))

    def submit_explain(
        self, client_id: str, table: str, row_id: str, claims: Claims | None, tracked: TrackedCursor
    ) -> Future[Explanation]:
        """Like `SyncGateway.submit_explain`, in the table's shard."""
        name = self._shard_map.of(table)
        return run(
            inspection.explain(self._shards[name], name, self._vectors, client_id, table, row_id, claims, tracked)
        )

    def submit_subscribe(self, newcomers: Sequence[Newcomer]) -> Future[list[SubscriptionState]]:
        """Like `SyncGateway.submit_subscribe`; the states are `ShardedSubscriptionState`."""
        return run(subscriptions.subscribe(self._shards, self._vectors, newcomers))

    def submit_resume(self, client_id: str, claims: Claims) -> Future[int | None]:
        """Like `SyncGateway.submit_resume`: a cursor for broadcasts before the client pulls; asks every shard."""
        return run(subscriptions.resume(self._shards, self._vectors, client_id, claims))

    def submit_scan(self, groups: Sequence[SubscriberGroup]) -> Future[list[ScanResult]]:
        """Like `SyncGateway.submit_scan`."""
        return run(subscriptions.scan(self._shards, self._vectors, groups))

    def submit_checkpoint(self, client_id: str, claims: Claims) -> Future[Checkpoint]:
        """Like `SyncGateway.submit_checkpoint`: every shard's newest checkpoint, under one cursor.

        Raises:
            ForbiddenError: the client id is not the token's.
            NotFoundError: a shard has no checkpoint.
        Raises (in the future):
            NotFoundError: as `SyncGateway.submit_checkpoint`, in any shard.
        """
        check_client(client_id, claims)
        for name, shard in self._shards.items():
            if not shard.has_checkpoint():
                raise NotFoundError(f"shard {name!r} of gateway {self.gateway_id!r} has no checkpoint: pull from 0")
        futures = {name: shard.submit_checkpoint(client_id, claims) for name, shard in self._shards.items()}
        return run(self._checkpoint(client_id, claims, futures))

    def submit_not_served_reason(self) -> Future[str | None]:
        """Like `SyncGateway.submit_not_served_reason`: the reason of the first shard that has one."""
        return run(self._not_served_reason())

    def _not_served_reason(self) -> Steps[str | None]:
        """Ask one shard after another why its checkpoint is not served."""
        for shard in self._shards.values():
            reason: str | None = yield shard.submit_not_served_reason()
            if reason is not None:
                return reason
        return None

    def _checkpoint(self, client_id: str, claims: Claims, futures: dict[str, Future[Checkpoint]]) -> Steps[Checkpoint]:
        """Join the shards' checkpoints to one.

        Args:
            client_id: the client's id.
            claims: the verified claims of the client's token.
            futures: the checkpoint of each shard, by shard name.

        Returns:
            A checkpoint whose `arrival` is a new cursor of the client, which means the arrival in each shard.
        """
        checkpoints: dict[str, Checkpoint] = {}
        for name, future in futures.items():
            checkpoints[name] = yield future
        arrivals = {name: checkpoint.arrival for name, checkpoint in checkpoints.items()}
        issued: IssuedCursor = yield self._vectors.submit_issue(client_id, claims, arrivals)
        return with_fields(
            checkpoints[self._shard_map.default],
            arrival=issued.cursor,
            tables=tuple(table for checkpoint in checkpoints.values() for table in checkpoint.tables),
            created_ms=max(checkpoint.created_ms for checkpoint in checkpoints.values()),
        )

    # -- configuration, of which every shard has a copy ------------------------------------------------------------

    def register_schema(self, schema: TableSchema | Mapping[str, Any]) -> int:
        """Like `SyncGateway.register_schema`, in every shard.

        A table or column whose name differs from a known one only in case is rejected. The table's shard checks that
        before any shard stores the schema: only this shard knows the names in deltas that were pushed before the table
        had a schema.
        """
        parsed = parse_schema(schema)
        with_schema(self.config(), parsed)  # a schema that is rejected here must not leave its names in a shard
        self._shards[self._shard_map.of(parsed.table)].check_names(parsed)
        version = self._default_shard.register_schema(parsed)
        self._align(_align_schemas)
        return version

    def retire_schema(self, table: str) -> int:
        """Like `SyncGateway.retire_schema`, in every shard. A repeat completes a call that failed in another shard."""
        retired = self.config().retired.get(table)
        if retired is None or not any(table in shard.config().schemas for shard in self._others()):
            retired = self._default_shard.retire_schema(table)
        self._align(_align_schemas)
        return retired

    def add_names(self) -> None:
        """Like `SyncGateway.add_names`: store the spellings of tables and columns in schemas, in every shard."""
        for shard in self._shards.values():
            shard.add_names()

    def set_rules(self, rules: SyncRules) -> int:
        """Like `SyncGateway.set_rules`, in every shard."""
        version = self._default_shard.set_rules(rules)
        self._align(_align_rules)
        return version

    def set_write_scope(self, scope: WriteScope) -> None:
        """Like `SyncGateway.set_write_scope`, in every shard."""
        self._default_shard.set_write_scope(scope)
        self._align(_align_write_scope)

    def continue_reindex(self) -> None:
        """Continue the re-index (the update of all rows' bucket keys) after a change of rules, in every shard."""
        for shard in self._shards.values():
            shard.continue_reindex()

    def align_shards(self) -> None:
        """Copy the default shard's configuration to the others, to complete a change that a crash interrupted.

        `Engine.open` calls it.
        """
        for align in (_align_schemas, _align_rules, _align_write_scope):
            self._align(align)

    def _align(self, align: Callable[[ShardGateway, GatewayConfig], None]) -> None:
        """Copy a part of the default shard's configuration to the others, which may have missed earlier changes.

        Another request, or another process, may change the configuration at the same time, and would be overwritten in
        these shards by an older one. So the part is copied again until the configuration has not changed meanwhile.

        Args:
            align: copies the part of a configuration that it is given to a shard.

        Raises:
            LakeSyncError: the first error of a shard. The change is tried in each shard before, so that no shard keeps
                old rules because another one cannot be reached. A repeat completes it.
        """
        while True:
            config = self.config()
            errors: list[LakeSyncError] = []
            for shard in self._others():
                try:
                    align(shard, config)
                except LakeSyncError as error:
                    errors.append(error)
            if self.config().version == config.version:
                break
        if errors:
            raise errors[0]

    def _mark_client_records_lost(self) -> None:
        """Like `_mark_client_records_lost` of `AdapterGateway`, in every shard: some may get no delta."""
        for shard in self._shards.values():
            shard.mark_client_records_lost()

    def _restore(self, deltas: Sequence[RowDelta]) -> None:
        """Like `_restore` of `AdapterGateway`, each delta in its shard."""
        for name, own in self._shard_map.divide(deltas).items():
            self._shards[name].restore(own)

    def _flushed_until(self) -> int:
        """Return the arrival up to which the deltas of every shard are flushed; see `AdapterGateway`.

        Each shard is flushed in order of arrival, but one may be flushed after another one with later arrivals. No
        clock is read, because processes whose clocks differ may push to the shards.
        """
        newest = self.stats().last_arrival
        for future in [shard.submit_advance(newest) for shard in self._shards.values()]:
            future.result()  # now the backlog has all pushes up to `newest`
        return min(newest if shard.oldest_arrival is None else shard.oldest_arrival - 1 for shard in self.backlog())

    def _others(self) -> Iterator[ShardGateway]:
        """Yield the gateways of all shards but the default one."""
        return (shard for name, shard in self._shards.items() if name != self._shard_map.default)


def _align_schemas(shard: ShardGateway, config: GatewayConfig) -> None:
    """Copy the schemas of the default shard's configuration to another shard."""
    known = shard.config().schemas
    for table in config.retired.keys() & known.keys():
        shard.retire_schema(table)
    for table, registered in config.schemas.items():
        if table in known and not _extends(registered.schema, known[table].schema):
            shard.retire_schema(table)  # the default shard retired it too, and then registered another schema
        if table not in known or known[table].schema != registered.schema:
            shard.register_schema(registered.schema)


def _align_rules(shard: ShardGateway, config: GatewayConfig) -> None:
    """Copy the rules of the default shard's configuration to another shard."""
    if config.rules is not None and shard.config().rules != config.rules:
        shard.set_rules(config.rules)


def _align_write_scope(shard: ShardGateway, config: GatewayConfig) -> None:
    """Copy the write scope of the default shard's configuration to another shard."""
    if config.write_scope is not None and shard.config().write_scope != config.write_scope:
        shard.set_write_scope(config.write_scope)


def _extends(new: TableSchema, old: TableSchema) -> bool:
    """Return whether a schema only adds columns to another one."""
    try:
        evolve(old, new)
    except SchemaError:
        return False
    return True
