"""`ShardedGateway`: one gateway over several staging stores.

A *shard* is a staging store with some of the tables. `Engine` creates a `ShardedGateway` instead of a `SyncGateway` if
tables are sharded. It forwards each operation to the shards' gateways, and translates the client's cursor into one
cursor for each shard (`vectors`). Operations over several shards are generators, which `run` runs. Those of pages,
pushes and subscriptions have modules of their own. Here are those of lag and explanations: the *lag* of a client is the
age of the oldest change that it was not sent yet; an *explanation* says why a client has a row or lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace as with_fields

from lakesync.actions import ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine.checks import EngineLimits, check_page_size
from lakesync.engine.client_position import TrackedCursor
from lakesync.engine.explanation import Explanation
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.lag import LagQuery, Unsent
from lakesync.engine.names import Names
from lakesync.engine.page_reading import PullRequest
from lakesync.engine.peek import PeekPage
from lakesync.engine.pushing import CheckedPush
from lakesync.engine.rejections import RejectionLog
from lakesync.engine.sharding import pulling, pushing, subscriptions
from lakesync.engine.sharding.shard_gateway import ShardGateway, Steps, of_shard, run
from lakesync.engine.sharding.subscriptions import ShardedSubscriptionState
from lakesync.engine.sharding.vectors import IssuedCursor, Vectors
from lakesync.engine.subscriptions import ScanResult, SubscriberGroup, SubscriptionState
from lakesync.feed.positions import NEVER_PULLED
from lakesync.flush import Outlet
from lakesync.model.errors import ForbiddenError, LakeSyncError, NotFoundError, SchemaError
from lakesync.model.schema import TableSchema, evolve, parse_schema
from lakesync.model.types import Claims, PushResult, RowDelta, SyncPage, SyncPush
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Checkpoint, WriteScope
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
        wall: Callable[[], int],
        limits: EngineLimits | None = None,
        *,
        connectors: Connectors | None = None,
        runner: ActionRunner | None = None,
        outlet: Outlet | None = None,
        names: Names | None = None,
        rejections: RejectionLog | None = None,
    ) -> None:
        """Create the gateway and its shards' gateways; the arguments are those of `SyncGateway`."""
        super().__init__(
            gateway_id,
            store,
            wall,
            limits,
            connectors=connectors,
            runner=runner,
            outlet=outlet,
            names=names,
            rejections=rejections,
        )
        self._shards = store.shards
        self._parts = {
            name: ShardGateway(gateway_id, each, wall, limits, runner=runner, names=names)
            for name, each in store.stores.items()
        }
        self._vectors = Vectors(gateway_id, store.default_store, wall)

    @property
    def _default_shard(self) -> ShardGateway:
        """The gateway of the default shard."""
        return self._parts[self._shards.default]

    # -- push and pull -----------------------------------------------------------------------------------------------

    def _record_rejection(self, push: SyncPush, claims: Claims, error: LakeSyncError) -> None:
        """Record a rejected push, with the newest arrival of all shards: rows with a later one have changed since."""
        self.newest_arrival = max(part.newest_arrival for part in self._parts.values())
        super()._record_rejection(push, claims, error)

    def _push(self, check: Callable[[], CheckedPush]) -> Future[PushResult]:
        """Push to the shards of the push's tables, after all of them accepted it; see `sharding.pushing`.

        The generator is given the future of its result, because the caller may cancel the push until it is stored.
        """
        request = check()  # at once, because the tables of the deltas decide which shards commit them
        outcome: Future[PushResult] = Future()
        return run(pushing.push(self._parts, self._shards, self._vectors, request, outcome), outcome)

    def _page(self, request: PullRequest) -> Future[SyncPage]:
        """Read a page from all shards."""
        return run(pulling.pull(self._parts, self._vectors, request))

    def submit_peek(self, claims: Claims, since: str | None, limit: int) -> Future[PeekPage]:
        """Like `SyncGateway.submit_peek`: reads one shard after another."""
        check_page_size(limit)
        return run(pulling.peek(self._parts, claims, since, limit))

    def submit_unsent(self, queries: Sequence[LagQuery]) -> Future[list[Unsent | None]]:
        """Like `SyncGateway.submit_unsent`: the oldest change in any shard."""
        return run(oldest_unsent(self._parts, self._vectors, queries))

    def submit_explain(
        self, client_id: str, table: str, row_id: str, claims: Claims | None, tracked: TrackedCursor
    ) -> Future[Explanation]:
        """Like `SyncGateway.submit_explain`, in the table's shard."""
        name = self._shards.of(table)
        return run(explain(self._parts[name], name, self._vectors, (client_id, table, row_id, claims), tracked))

    def submit_subscribe(
        self, newcomers: Sequence[tuple[str, Claims, SubscriptionState]]
    ) -> Future[list[SubscriptionState]]:
        """Like `SyncGateway.submit_subscribe`; the states are `ShardedSubscriptionState`."""
        return run(subscriptions.subscribe(self._parts, self._vectors, newcomers))

    def submit_resume(self, client_id: str, claims: Claims) -> Future[int | None]:
        """Like `SyncGateway.submit_resume`, in every shard."""
        return run(subscriptions.resume(self._parts, self._vectors, client_id, claims))

    def submit_scan(self, groups: Sequence[SubscriberGroup]) -> Future[list[ScanResult]]:
        """Like `SyncGateway.submit_scan`."""
        return run(subscriptions.scan(self._parts, self._vectors, groups))

    def submit_checkpoint(self, client_id: str, claims: Claims) -> Future[Checkpoint]:
        """Like `SyncGateway.submit_checkpoint`: every shard's newest checkpoint, under one cursor.

        Raises:
            ForbiddenError: the client id is not the token's.
            NotFoundError: a shard has no checkpoint.
        Raises (in the future):
            NotFoundError: as `SyncGateway.submit_checkpoint`, in any shard.
        """
        if client_id != claims.get("sub"):
            raise ForbiddenError(f"clientId is {client_id!r} but the token's sub is {claims.get('sub')!r}")
        for name, part in self._parts.items():
            if not part.has_checkpoint():
                raise NotFoundError(f"shard {name!r} of gateway {self.gateway_id!r} has no checkpoint: pull from 0")
        futures = {name: part.submit_checkpoint(client_id, claims) for name, part in self._parts.items()}
        return run(self._checkpoint(client_id, futures))

    def _checkpoint(self, client_id: str, futures: dict[str, Future[Checkpoint]]) -> Steps[Checkpoint]:
        """Join the shards' checkpoints to one.

        Args:
            client_id: the client's id.
            futures: the checkpoint of each shard, by shard name.

        Returns:
            A checkpoint whose `arrival` is a new cursor of the client, which means the arrival in each shard.
        """
        checkpoints: dict[str, Checkpoint] = {}
        for name, future in futures.items():
            checkpoints[name] = yield future
        arrivals = {name: checkpoint.arrival for name, checkpoint in checkpoints.items()}
        issued: IssuedCursor = yield self._vectors.submit_issue(client_id, arrivals)
        return with_fields(
            checkpoints[self._shards.default],
            arrival=issued.cursor,
            tables=tuple(table for checkpoint in checkpoints.values() for table in checkpoint.tables),
            created_ms=max(checkpoint.created_ms for checkpoint in checkpoints.values()),
        )

    # -- configuration, of which every shard has a copy ------------------------------------------------------------

    def register_schema(self, schema: TableSchema | Mapping[str, Any]) -> int:
        """Like `SyncGateway.register_schema`, in every shard.

        The table's shard checks the names before any shard stores the schema: it has the names of rows that were pushed
        before the table had a schema.
        """
        parsed = parse_schema(schema)
        self._parts[self._shards.of(parsed.table)].check_names(parsed)
        version = self._default_shard.register_schema(parsed)
        self._align_schemas()
        return version

    def retire_schema(self, table: str) -> int:
        """Like `SyncGateway.retire_schema`, in every shard. A repeat completes a call that failed in another shard."""
        retired = self.config().retired.get(table)
        if retired is None or not any(table in part.config().schemas for part in self._others()):
            retired = self._default_shard.retire_schema(table)
        self._align_schemas()
        return retired

    def add_names(self) -> None:
        """Like `SyncGateway.add_names`, in every shard."""
        for part in self._parts.values():
            part.add_names()

    def set_rules(self, rules: SyncRules) -> int:
        """Like `SyncGateway.set_rules`, in every shard."""
        version = self._default_shard.set_rules(rules)
        for part in self._others():
            part.set_rules(rules)
        return version

    def set_write_scope(self, scope: WriteScope) -> None:
        """Like `SyncGateway.set_write_scope`, in every shard."""
        for part in self._parts.values():
            part.set_write_scope(scope)

    def continue_reindex(self) -> None:
        """Continue the re-index (the update of all rows' bucket keys) after a change of rules, in every shard."""
        for part in self._parts.values():
            part.continue_reindex()

    def align_shards(self) -> None:
        """Copy the default shard's configuration to the others, to complete a change that a crash interrupted.

        `Engine.open` calls it.
        """
        self._align_schemas()
        config = self.config()
        for part in self._others():
            current = part.config()
            if config.rules is not None and current.rules != config.rules:
                part.set_rules(config.rules)
            if config.write_scope is not None and current.write_scope != config.write_scope:
                part.set_write_scope(config.write_scope)

    def _align_schemas(self) -> None:
        """Copy the default shard's schemas to the others, which may have missed any number of earlier changes."""
        config = self.config()
        for part in self._others():
            known = part.config().schemas
            for table in config.retired.keys() & known.keys():
                part.retire_schema(table)
            for table, registered in config.schemas.items():
                if table in known and not _extends(registered.schema, known[table].schema):
                    part.retire_schema(table)  # the default shard retired it too, and then registered another schema
                if table not in known or known[table].schema != registered.schema:
                    part.register_schema(registered.schema)

    def _restore(self, deltas: Sequence[RowDelta]) -> None:
        """Like `_restore` of the base class `AdapterGateway`, each delta in its shard."""
        by_shard: dict[str, list[RowDelta]] = {}
        for delta in deltas:
            by_shard.setdefault(self._shards.of(delta.table), []).append(delta)
        for name, own in by_shard.items():
            self._parts[name].rehydrate(own)

    def _others(self) -> Iterator[ShardGateway]:
        """Yield the gateways of all shards but the default one."""
        return (part for name, part in self._parts.items() if name != self._shards.default)


def _extends(new: TableSchema, old: TableSchema) -> bool:
    """Return whether a schema only adds columns to another one."""
    try:
        evolve(old, new)
    except SchemaError:
        return False
    return True


def oldest_unsent(
    parts: Mapping[str, ShardGateway], vectors: Vectors, queries: Sequence[LagQuery]
) -> Steps[list[Unsent | None]]:
    """Return the oldest unsent change of each client over all shards; see `engine.lag.oldest_unsent` for one store.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        queries: the clients, each with the result of its previous query.

    Returns:
        The oldest unsent change of each client in any shard; None for a client that never pulled.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    positions = yield from _in_shards(parts, vectors, [(query.client_id, query.tracked) for query in queries])
    by_client: list[dict[str, Unsent]] = [{} for _ in queries]
    for name, part in parts.items():
        in_shard = [_in_shard(name, query, tracked[name]) for query, tracked in zip(queries, positions, strict=True)]
        results = yield from of_shard(name, part.submit_unsent(in_shard))
        for by_shard, result in zip(by_client, results, strict=True):
            if result is not None:
                by_shard[name] = result
    return [_oldest(by_shard) for by_shard in by_client]


def _in_shard(name: str, query: LagQuery, tracked: TrackedCursor) -> LagQuery:
    """Return the query for one shard, with the shard's part of the previous result."""
    return LagQuery(query.client_id, tracked, query.before.shards.get(name) if query.before is not None else None)


def _oldest(by_shard: Mapping[str, Unsent]) -> Unsent | None:
    """Return the oldest of the shards' results; None if the client pulled from no shard."""
    if not by_shard:
        return None
    oldest = min((each.since for each in by_shard.values() if each.since), default=0)
    return Unsent(oldest, done=all(each.done for each in by_shard.values()), shards=by_shard)


def explain(
    part: ShardGateway,
    name: str,
    vectors: Vectors,
    query: tuple[str, str, str, Claims | None],
    tracked: TrackedCursor,
) -> Steps[Explanation]:
    """Explain why a client has or lacks a row of one shard; see `engine.explain.explain`.

    Args:
        part: the shard's gateway.
        name: the shard's name.
        vectors: resolves and creates client cursors.
        query: client id, table, row id, and the client's claims or None, as for `SyncGateway.submit_explain`.
        tracked: what this process knows of the client, with cursors of the sharded gateway.

    Raises:
        StagingUnavailableError: the shard or the default shard cannot be reached.
    """
    (by_shard,) = yield from _in_shards([name], vectors, [(query[0], tracked)])
    explanation: Explanation = yield from of_shard(name, part.submit_explain(*query, by_shard[name]))
    return explanation


def _in_shards(
    names: Collection[str], vectors: Vectors, clients: Sequence[tuple[str, TrackedCursor]]
) -> Steps[list[dict[str, TrackedCursor]]]:
    """Return what this process knows of each client's cursor in each of the named shards, by shard name.

    Args:
        names: the shards' names.
        vectors: resolves client cursors.
        clients: client id, and what this process knows of the client, with cursors of the sharded gateway.
    """
    # by shard name; None for a cursor that is 0, None or unknown
    sent: list[dict[str, int] | None] = yield vectors.submit_vectors(
        [(client, tracked.cursor) for client, tracked in clients]
    )
    confirmed: list[dict[str, int] | None] = yield vectors.submit_vectors(
        [(client, tracked.confirmed) for client, tracked in clients]
    )
    return [
        {name: _cursor_in_shard(name, tracked, sent_cursors, confirmed_cursors) for name in names}
        for (_, tracked), sent_cursors, confirmed_cursors in zip(clients, sent, confirmed, strict=True)
    ]


def _cursor_in_shard(
    name: str, tracked: TrackedCursor, sent: dict[str, int] | None, confirmed: dict[str, int] | None
) -> TrackedCursor:
    """Return what this process knows of a client's cursor in one shard.

    Args:
        name: the shard's name.
        tracked: the same for the sharded gateway.
        sent: the vector of `tracked.cursor`, a cursor in each shard; None if it has no such cursors.
        confirmed: the same for `tracked.confirmed`.
    """
    state = tracked.state
    # in the middle of pages, the shards' states are not those of the client's cursor
    parts = state.parts if isinstance(state, ShardedSubscriptionState) and not state.has_more else None
    # without a vector: a client that never pulled has nothing of the shard; for any other, the shard's record decides
    unresolved = 0 if tracked.cursor is not None and tracked.cursor <= NEVER_PULLED else None
    return tracked._replace(
        cursor=sent.get(name, 0) if sent is not None else unresolved,
        confirmed=confirmed.get(name, 0) if confirmed is not None else None,
        state=parts.get(name) if parts is not None else None,
    )
