"""`SyncGateway`: one tenant's or app's stream of changes, with all of its operations.

Routes, WebSocket channels and embedding apps call it. Each operation is a work or a read that it submits to staging;
the laws are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from lakesync.actions import ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine.actions import ActionGateway
from lakesync.engine.checks import check_limit, check_pull, check_push
from lakesync.engine.client_position import ClientPosition
from lakesync.engine.embedding import Embedding
from lakesync.engine.explain import explain
from lakesync.engine.explanation import Explanation
from lakesync.engine.lag import LagQuery, Unsent, oldest_unsent
from lakesync.engine.limits import EngineLimits
from lakesync.engine.names import Names, PushNames
from lakesync.engine.peek import PeekPage, peek
from lakesync.engine.pulling import PullRequest, Reading, first_contact, remember_page, unrecorded_cursor
from lakesync.engine.pushing import CheckedPush, push_work
from lakesync.engine.reindexing import Reindexer
from lakesync.engine.rejections import RejectionLog
from lakesync.engine.subscriptions import ScanResult, SubscriberGroup, SubscriptionState, resume, scan, subscribe
from lakesync.feed.client_state import current, is_blank
from lakesync.flush import Outlet
from lakesync.model.errors import BackpressureError, ForbiddenError, LakeSyncError, NotFoundError, RefusedError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import Claims, PushResult, SyncPage, SyncPull, SyncPush, SyncResponse
from lakesync.rules.model import SyncRules
from lakesync.staging.notices import Presence
from lakesync.staging.records import Backlog, Checkpoint, GatewayConfig, WriteScope
from lakesync.staging.store import Commit, StagingStore
from lakesync.staging.store.operations import ConfigCommit
from lakesync.staging.store.push import PushCommit

T = TypeVar("T")
U = TypeVar("U")


class GatewayStats(msgspec.Struct, frozen=True, rename="camel"):
    """What is unflushed, and how far the lake is."""

    log_size: int
    """Number of unflushed deltas."""
    byte_size: int
    oldest_ms: int | None
    """Server wall time of the oldest of them."""
    last_arrival: int = msgspec.field(name="lastArrivalHlc")
    last_seq: int
    flushed_seq: int
    flushed_ms: int | None
    """Server wall time when a batch was last read back from the lake."""


class SyncGateway(ActionGateway, Embedding):
    """A gateway over a staging store.

    Each operation has a form that returns a future, which completes when the answer is durable, and a blocking form.
    """

    def __init__(
        self,
        gateway_id: str,
        store: StagingStore,
        wall: Callable[[], int],
        limits: EngineLimits | None = None,
        *,
        connectors: Connectors | None = None,
        runner: ActionRunner | None = None,
        outlet: Outlet | None = None,
        names: Names | None = None,
        rejections: RejectionLog | None = None,
    ) -> None:
        """Create the gateway; nothing is read.

        Args:
            gateway_id: the gateway's id.
            store: the staging store that contains the gateway.
            wall: returns the server's wall time in milliseconds since 1970.
            limits: of requests.
            connectors: connector types, and the keys that seal their secrets.
            runner: executes actions; gateways may share one.
            outlet: where the gateway flushes to; None if a pipeline flushes, or nothing does.
            names: of tables and columns; the gateways of an engine share them.
            rejections: rejected deltas; the gateways of an engine share the log.
        """
        self._limits = limits or EngineLimits()
        self.names = names or Names()
        self.rejections = rejections or RejectionLog(wall)
        """The latest rejected delta of each row."""
        self.newest_arrival = 0
        """The newest arrival that a push of this process found; 0 before the first push."""
        ActionGateway.__init__(self, gateway_id, store, wall, self._limits.actions, connectors, runner)
        Embedding.__init__(self, gateway_id, store, wall, outlet)
        self._reindexer = Reindexer(gateway_id, store, self.rules, self._limits.reindex_rows)

    def submit_push(
        self, push: SyncPush, claims: Claims, *, seen: int | None = None, trusted: bool = False
    ) -> Future[PushResult]:
        """Accept a client's deltas, all or none; a repeat is accepted and changes nothing.

        Args:
            push: the request.
            claims: the verified claims of the client's token.
            seen: the newest cursor that the client certainly has when it gets the response: the one in the request, or
                that of the last page on the same ordered connection. Without it, what the client was sent since its
                last pull is in doubt, and is sent again after this push.
            trusted: whether the deltas come from the server's own side, to which the write scope does not apply.

        Raises:
            ValidationError, ForbiddenError, ClockDriftError, SchemaMismatchError: nothing was stored; `rejected` names
                every rejected delta.
        Raises (in the future):
            BackpressureError: too much is unflushed.
            StagingUnavailableError: the push may or may not have been stored; a repeat is safe.
        """
        now = self._wall()
        try:
            check_push(push, claims, now, self._limits)
        except RefusedError as error:
            if not trusted:
                self._record_rejection(push, claims, error)
            raise
        pushing = self._push(CheckedPush(push, claims, now, seen, trusted=trusted))
        if not trusted:
            pushing.add_done_callback(lambda done: self._record_if_rejected(push, claims, done))
        return pushing

    def _record_if_rejected(self, push: SyncPush, claims: Claims, done: Future[PushResult]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, RefusedError | BackpressureError):
            self._record_rejection(push, claims, error)

    def _record_rejection(self, push: SyncPush, claims: Claims, error: LakeSyncError) -> None:
        self.rejections.record(self.gateway_id, str(claims["sub"]), push.deltas, error, self.newest_arrival)

    def handle_push(self, push: SyncPush, claims: Claims | None = None) -> PushResult:
        """Call `submit_push` and wait. Without claims, the caller and the client id in the push are trusted."""
        return self.submit_push(push, claims or {"sub": push.client_id}, trusted=claims is None).result()

    def submit_pull(
        self,
        pull: SyncPull,
        claims: Claims,
        *,
        resync_refused: bool = False,
        confirmed: bool = True,
        live: bool = False,
        has_not_pulled: bool = False,
    ) -> Future[SyncResponse]:
        """Return a page of what the client lacks and may see.

        Args:
            pull: the request.
            claims: the verified claims of the client's token.
            resync_refused: whether to raise ResyncRequiredError for a cursor that cannot be served.
            confirmed: whether the client sent the cursor itself, so that it has everything up to it. False for a page
                that the server sends without a request, from the cursor of the last page on the same connection; from
                then on, the client may get broadcasts that are not recorded.
            live: whether the page is sent on a connection that also gets broadcasts. Pages that such a client is sent
                elsewhere count as possibly there on its connections.
            has_not_pulled: whether the cursor comes from `submit_resume`: the client may have other rows than it means.

        Raises:
            ValidationError: `max_deltas` is out of range.
            ForbiddenError: the pull has another client's id.
            NotFoundError: it names a source that is not registered.
        Raises (in the future):
            AdapterError: its source cannot be read.
            ResyncRequiredError: the cursor cannot be served, if `resync_refused`; otherwise such a client is sent
                everything as DELETE, then INSERT.
        """
        page = self.submit_page(
            pull, claims, resync_refused=resync_refused, confirmed=confirmed, live=live, has_not_pulled=has_not_pulled
        )
        return _then(page, lambda made: _done(SyncResponse(tuple(made.deltas), made.server_hlc, made.has_more)))

    def submit_page(
        self,
        pull: SyncPull,
        claims: Claims,
        *,
        resync_refused: bool = False,
        confirmed: bool = True,
        live: bool = False,
        has_not_pulled: bool = False,
    ) -> Future[SyncPage]:
        """Like `submit_pull`, for a caller that sends the deltas on as JSON without decoding them."""
        check_pull(pull, claims)
        if pull.source is not None:
            pulled = self.sources.submit_pull(pull.source, pull, claims, live=live)
            return _then(pulled, lambda page: _done(SyncPage(page.deltas, page.server_hlc, page.has_more)))
        live = live or not confirmed
        return self._page(PullRequest(pull, claims, resync_refused, confirmed, self._wall(), live, has_not_pulled))

    def handle_pull(self, pull: SyncPull, claims: Claims | None = None) -> SyncResponse:
        """Call `submit_pull` and wait."""
        return self.submit_pull(pull, claims or {"sub": pull.client_id}).result()

    def submit_peek(self, claims: Claims, since: str | None, limit: int) -> Future[PeekPage]:
        """Return a page of what a client with these claims may see, its own writes included; nothing is recorded.

        Args:
            claims: the verified claims of the client's token.
            since: cursor of the page before; None for all rows; `now` for later changes only.
            limit: the most deltas of a page, from 1 to `MAX_PULL`.

        Raises:
            ValidationError: the limit is out of range.
        Raises (in the future):
            ValidationError: `since` is not such a cursor.
            ResyncRequiredError: the rules changed since it was returned.
        """
        check_limit(limit)
        return self._store.read(self.gateway_id, lambda view: peek(view, claims, since, limit, self.rules))

    def submit_unsent(self, looks: Sequence[LagQuery]) -> Future[list[Unsent | None]]:
        """Return the oldest unsent change of each client; nothing is recorded."""
        return self._store.read(self.gateway_id, lambda view: [oldest_unsent(view, look, self.rules) for look in looks])

    def submit_explain(
        self, client_id: str, table: str, row_id: str, claims: Claims | None, where: ClientPosition
    ) -> Future[Explanation]:
        """Explain why a client has a row or lacks it; see `engine.explain.explain`."""
        return self._store.read(
            self.gateway_id, lambda view: explain(view, client_id, table, row_id, claims, self.rules, where)
        )

    def submit_subscribe(
        self, newcomers: Sequence[tuple[str, Claims, SubscriptionState]]
    ) -> Future[list[SubscriptionState]]:
        """Subscribe connected clients to broadcasts, and return their states.

        Args:
            newcomers: client id, claims and state of each.
        """
        now = self._wall()
        return self._store.submit(self.gateway_id, lambda commit: subscribe(commit, newcomers, self.rules, now))

    def submit_resume(self, client_id: str) -> Future[int | None]:
        """Return a cursor from which a client can get broadcasts before it pulls; None if it has to pull first."""
        return self._store.submit(self.gateway_id, lambda commit: resume(commit, client_id))

    @property
    def shared(self) -> bool:
        """Whether other processes may have connections of the same clients."""
        return self._store.shared

    def submit_presence(self, presence: Sequence[Presence]) -> Future[None]:
        """Notify all processes of this gateway which clients are connected to this one."""
        return self._store.submit(self.gateway_id, lambda commit: commit.announce_presence(presence))

    def submit_scan(self, groups: Sequence[SubscriberGroup]) -> Future[list[ScanResult]]:
        """Return what each group of subscribers lacks, in the order of the groups."""
        return self._store.read(self.gateway_id, lambda view: scan(view, groups, self.rules))

    def submit_checkpoint(self, client_id: str, claims: Claims) -> Future[Checkpoint]:
        """Return the checkpoint from which a new client may start; the client counts as seen afterwards.

        Raises (in the future):
            NotFoundError: there is no checkpoint, the rules are newer, something was erased since, or the client was
                seen before.
        """
        if client_id != claims.get("sub"):
            raise ForbiddenError(f"clientId is {client_id!r} but the token's sub is {claims.get('sub')!r}")
        checkpoint = self._store.newest_checkpoint(self.gateway_id)
        if checkpoint is None:
            raise NotFoundError(f"gateway {self.gateway_id!r} has no checkpoint yet: pull from 0 instead")
        now = self._wall()

        def work(commit: Commit) -> Checkpoint:
            access = self.rules.access(commit, claims)
            stale = checkpoint.rules_version != access.rules_version or access.directly is not None
            if checkpoint.epoch != commit.epoch or stale:
                raise NotFoundError("the rules are newer than the newest checkpoint: pull from 0 instead")
            if commit.predates_erasure(checkpoint):
                raise NotFoundError("something was erased that the newest checkpoint may hold: pull from 0 instead")
            if not is_blank(current(commit.client(client_id), commit.epoch)):
                raise NotFoundError(f"client {client_id!r} was seen before: pull from its cursor, or from 0")
            first_contact(commit, client_id, checkpoint.arrival, access, now)
            return checkpoint

        return self._store.submit(self.gateway_id, work)

    def config(self) -> GatewayConfig:
        """Return the active schemas and rules."""
        return self._store.gateway_config(self.gateway_id)

    def register_schema(self, schema: TableSchema | Mapping[str, Any]) -> int:
        """Register a table's schema, or add nullable columns to it; return its version.

        Raises:
            SchemaError: it is invalid, the change is not additive, or a name differs only in case from one in the
                namespace; the message names the column.
        """
        parsed = parse_schema(schema)

        def work(commit: ConfigCommit) -> int:
            self.names.check_schema(commit, parsed)
            return commit.put_schema(parsed)

        return self._store.submit(self.gateway_id, work).result()

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema: pushes to it are no longer checked, and its state table gets no further columns.

        Rows, and the columns of the state table, stay.

        Returns:
            The version of that; a schema registered later has a higher one.

        Raises:
            NotFoundError: the table has no schema.
        """
        return self._store.submit(self.gateway_id, lambda commit: commit.retire_schema(table)).result()

    def add_names(self) -> None:
        """Add the names of registered schemas to those of the namespace, if any are missing."""
        if self._store.read(self.gateway_id, self.names.missing).result():
            self._store.submit(self.gateway_id, self.names.add_registered).result()

    def ensure_schema(self, schema: TableSchema) -> bool:
        """Register a table's schema unless the table has or had one; return whether it was registered.

        Raises:
            SchemaError: as `register_schema`.
        """
        config = self.config()
        if schema.table in config.schemas or schema.table in config.retired:
            return False
        self.register_schema(schema)
        return True

    def set_rules(self, rules: SyncRules) -> int:
        """Activate sync rules; return their version.

        Hidden rows are no longer sent at once. Rows get their new bucket keys in the background, some at a time; for a
        gateway with few rows, that is done when this returns.
        """
        version = self._store.submit(self.gateway_id, lambda commit: commit.put_rules(rules)).result()
        self.continue_reindex()
        return version

    def continue_reindex(self) -> None:
        """Continue the re-index after a change of rules, if it is not done."""
        if self._store.read(self.gateway_id, self.rules.is_reindexed).result():
            return
        done = self._reindexer.submit().result()
        if not done.done:
            done = self._reindexer.submit(done).result()
        if not done.done:
            self._reindexer.start(done)

    @property
    def declared_write_scope(self) -> WriteScope:
        """Which rows a client may push to, unless it was set at run time."""
        return self._limits.write_scope

    def set_write_scope(self, scope: WriteScope) -> None:
        """Set which rows clients may push to."""
        self._store.submit(self.gateway_id, lambda commit: commit.put_write_scope(scope)).result()

    def request_flush(self) -> None:
        """Request a flush from the pipeline."""
        self._store.request_flush(self.gateway_id)

    def backlog(self) -> list[Backlog]:
        """Return the unflushed part of each shard."""
        return [shard for shard in self._store.backlog() if shard.gateway == self.gateway_id]

    def stats(self) -> GatewayStats:
        """Return the unflushed part over all shards."""
        waiting = self.backlog()
        return GatewayStats(
            log_size=sum(shard.deltas for shard in waiting),
            byte_size=sum(shard.bytes for shard in waiting),
            oldest_ms=min((shard.oldest_ms for shard in waiting if shard.oldest_ms is not None), default=None),
            last_arrival=max((shard.last_arrival for shard in waiting), default=0),
            last_seq=max((shard.last_seq for shard in waiting), default=0),
            flushed_seq=max((shard.flushed_seq for shard in waiting), default=0),
            flushed_ms=max((shard.flushed_ms for shard in waiting if shard.flushed_ms is not None), default=None),
        )

    def _push(self, request: CheckedPush) -> Future[PushResult]:
        ready, names = request.made_ready(), self.names.of_push()

        def work(commit: PushCommit) -> PushResult:
            self.newest_arrival = commit.arrival
            return push_work(commit, ready, self.rules, self._limits, names)

        return self._submit_checked(work, names)

    def _submit_checked(self, work: Callable[[PushCommit], T], names: PushNames) -> Future[T]:
        """Run work in a commit; the names that it checks are known once the commit is durable."""
        submitted = self._store.submit(self.gateway_id, work)
        submitted.add_done_callback(names.add_durable)
        return submitted

    def _page(self, request: PullRequest) -> Future[SyncPage]:
        reading = self._store.read(self.gateway_id, lambda view: self.sources.read_page(view, request))
        return _then(reading, lambda page: self._answer(request, page))

    def _answer(self, request: PullRequest, reading: Reading) -> Future[SyncPage]:
        if reading.access.directly is not None:
            self._reindexer.start()
        cursor = unrecorded_cursor(request, reading)
        if cursor is not None:
            return _done(reading.answer(cursor))
        return self._store.submit(
            self.gateway_id, lambda commit: remember_page(commit, request, reading, self.sources.read_page)
        )


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _then(source: Future[T], follow: Callable[[T], Future[U]]) -> Future[U]:
    """Return a future of the result of the future that `follow` returns for the result of `source`."""
    target: Future[U] = Future()

    def forward(ended: Future[U]) -> None:
        error = ended.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(ended.result())

    def start(ended: Future[T]) -> None:
        try:
            follow(ended.result()).add_done_callback(forward)
        except BaseException as error:
            target.set_exception(error)

    source.add_done_callback(start)
    return target
