"""One gateway: a tenant's stream of deltas, to push to and pull from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from lakesync.actions import ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine.actions import ActionGateway
from lakesync.engine.checks import check_limit, check_pull, check_request
from lakesync.engine.client_position import ClientPosition
from lakesync.engine.embedding import Embedding
from lakesync.engine.explain import explain
from lakesync.engine.explanation import Explanation
from lakesync.engine.lag import LagQuery, Unsent, oldest_unsent
from lakesync.engine.limits import EngineLimits
from lakesync.engine.names import Names
from lakesync.engine.peek import PeekPage, peek
from lakesync.engine.pulling import PullRequest, Reading, first_contact, remember_page, settled_cursor
from lakesync.engine.pushing import CheckedPush, push_work
from lakesync.engine.reindexing import Reindexer
from lakesync.engine.rejections import RejectionLog
from lakesync.engine.subscriptions import ScanResult, SubscriberGroup, SubscriptionState, resume, scan, subscribe
from lakesync.feed.memory import current, is_blank
from lakesync.flush import Outlet
from lakesync.model.errors import BackpressureError, ForbiddenError, LakeSyncError, NotFoundError, RefusedError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import Claims, PushResult, SyncPage, SyncPull, SyncPush, SyncResponse
from lakesync.rules.model import SyncRules
from lakesync.staging.notices import Presence
from lakesync.staging.records import Backlog, Cut, GatewayConfig, WriteScope
from lakesync.staging.store import Commit, StagingStore

T = TypeVar("T")
U = TypeVar("U")


class GatewayStats(msgspec.Struct, frozen=True, rename="camel"):
    """What waits for the lake, and how far the gateway and the lake are."""

    log_size: int
    """Deltas not yet confirmed in the lake."""
    byte_size: int
    oldest_ms: int | None
    """Server wall time of the oldest of them."""
    last_arrival: int = msgspec.field(name="lastArrivalHlc")
    last_seq: int
    flushed_seq: int
    flushed_ms: int | None
    """Server wall time at which a batch was last read back from the lake."""


class SyncGateway(ActionGateway, Embedding):
    """A gateway over a staging store.

    Every operation has a form that returns a future, ended when the answer is durable, and a blocking twin.
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
        """Args:
        wall: the server's clock in milliseconds.
        connectors: the connector types that there are, and the key to their secrets.
        runner: where actions are carried; gateways may share one.
        outlet: where the gateway itself flushes to; None where a pipeline, or nobody, does.
        names: of tables and columns; the gateways of an engine share them.
        rejections: of clients' pushes; the gateways of an engine share it.
        """
        self._limits = limits or EngineLimits()
        self.names = names or Names()
        self.rejections = rejections or RejectionLog(wall)
        """The latest rejected delta of each row."""
        self.newest_arrival = 0
        """The newest arrival that a push found here; 0 before the first push."""
        ActionGateway.__init__(self, gateway_id, store, wall, self._limits.actions, connectors, runner)
        Embedding.__init__(self, gateway_id, store, wall, outlet)
        self._reindexer = Reindexer(gateway_id, store, self.rules, self._limits.reindex_rows)

    def submit_push(
        self, push: SyncPush, claims: Claims, *, seen: int | None = None, trusted: bool = False
    ) -> Future[PushResult]:
        """Take a client's deltas, all or none; a repeat is accepted and changes nothing.

        Args:
            seen: the cursor that the client certainly has when it gets the answer: the one that it named itself, or
                that of the last page on the same ordered connection. Without it, what the client was told since its
                last pull counts as in doubt, and is told again after this push.
            trusted: whether the deltas come from the server's own side, to which the write scope does not apply.

        Raises:
            ValidationError, ForbiddenError, ClockDriftError, SchemaMismatchError: nothing was kept; `rejected` names
                every refused delta.
        Raises (in the future):
            BackpressureError: too much waits for the lake.
            StagingUnavailableError: the push may or may not have been kept; a repeat is safe.
        """
        now = self._wall()
        try:
            check_request(push, claims, now, self._limits)
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
        """`submit_push`, waited for; without claims the caller is trusted, and the push's own client id believed."""
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
        """A page of what the client lacks, as its rules and claims allow.

        Args:
            confirmed: whether the client sent the cursor itself, so that it has what that stands for. False for a
                page that the server sends unasked, from the cursor of the last page on the same connection; from
                then on the client counts as followed, to whom pages may go of which the gateway keeps nothing.
            live: whether it is asked on a connection that is told of what is new. Of a client that follows, whatever
                it is sent beside counts as perhaps there on its connections.
            has_not_pulled: the cursor is what `submit_resume` found: the client may have other rows than that says.

        Raises:
            ValidationError: `max_deltas` is out of range.
            ForbiddenError: the pull is in another client's name.
            NotFoundError: it names a source that is not registered.
        Raises (in the future):
            AdapterError: its source cannot be read.
            ResyncRequiredError: the cursor cannot be served, where `resync_refused`; otherwise such a client is given
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
        """As `submit_pull`, for a caller that sends the deltas on as JSON and need not look at them."""
        check_pull(pull, claims)
        if pull.source is not None:
            told = self.sources.submit_pull(pull.source, pull, claims, live=live)
            return _then(told, lambda page: _done(SyncPage(page.deltas, page.server_hlc, page.has_more)))
        live = live or not confirmed
        return self._page(PullRequest(pull, claims, resync_refused, confirmed, self._wall(), live, has_not_pulled))

    def handle_pull(self, pull: SyncPull, claims: Claims | None = None) -> SyncResponse:
        """`submit_pull`, waited for."""
        return self.submit_pull(pull, claims or {"sub": pull.client_id}).result()

    def submit_peek(self, claims: Claims, since: str | None, limit: int) -> Future[PeekPage]:
        """A page of what a client with these claims may see, its own writes included; nothing is kept of it.

        Args:
            claims: the client's.
            since: the cursor of the page before; None: all that is there; `now`: nothing of that.
            limit: as for a pull.

        Raises:
            ValidationError: the limit is out of range.
        Raises (in the future):
            ValidationError: `since` is no such cursor.
            ResyncRequiredError: the rules changed since it was handed out.
        """
        check_limit(limit)
        return self._store.read(self.gateway_id, lambda view: peek(view, claims, since, limit, self.rules))

    def submit_unsent(self, looks: Sequence[LagQuery]) -> Future[list[Unsent | None]]:
        """How far clients are behind; nothing is kept of it."""
        return self._store.read(self.gateway_id, lambda view: [oldest_unsent(view, look, self.rules) for look in looks])

    def submit_explain(
        self, client_id: str, table: str, row_id: str, claims: Claims | None, where: ClientPosition
    ) -> Future[Explanation]:
        """Why a client has a row or lacks it; the arguments are those of `explain`."""
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
        """Whether other processes may hold connections of the same clients."""
        return self._store.shared

    def submit_presence(self, presence: Sequence[Presence]) -> Future[None]:
        """Tell all processes of this gateway which clients are connected to this one."""
        return self._store.submit(self.gateway_id, lambda commit: commit.announce_presence(presence))

    def submit_scan(self, groups: Sequence[SubscriberGroup]) -> Future[list[ScanResult]]:
        """Return what each group of subscribers lacks, in the order of the groups."""
        return self._store.read(self.gateway_id, lambda view: scan(view, groups, self.rules))

    def submit_checkpoint(self, client_id: str, claims: Claims) -> Future[Cut]:
        """The cut that a client that was never seen may start from; from then on it is seen.

        Raises (in the future):
            NotFoundError: there is no cut, rules are newer than it or something was erased since, or the client was
                seen before.
        """
        if client_id != claims.get("sub"):
            raise ForbiddenError(f"clientId is {client_id!r} but the token's sub is {claims.get('sub')!r}")
        cut = self._store.newest_cut(self.gateway_id)
        if cut is None:
            raise NotFoundError(f"gateway {self.gateway_id!r} has no checkpoint yet: pull from 0 instead")
        now = self._wall()

        def work(commit: Commit) -> Cut:
            access = self.rules.access(commit, claims)
            stale = cut.rules_version != access.rules_version or access.directly is not None
            if cut.epoch != commit.epoch or stale:
                raise NotFoundError("the rules are newer than the newest checkpoint: pull from 0 instead")
            if commit.is_barred(cut):
                raise NotFoundError("something was erased that the newest checkpoint may hold: pull from 0 instead")
            if not is_blank(current(commit.client(client_id), commit.epoch)):
                raise NotFoundError(f"client {client_id!r} was seen before: pull from its cursor, or from 0")
            first_contact(commit, client_id, cut.arrival, access, now)
            return cut

        return self._store.submit(self.gateway_id, work)

    def config(self) -> GatewayConfig:
        """Schemas and rules in force."""
        return self._store.gateway_config(self.gateway_id)

    def register_schema(self, schema: TableSchema | Mapping[str, Any]) -> int:
        """Register a table's schema, or evolve it by nullable columns; its version.

        Raises:
            SchemaError: it is no schema, the change is not additive, or a name differs from one that the namespace has
                only in case; the message names the column.
        """
        parsed = parse_schema(schema)

        def work(commit: Commit) -> int:
            self.names.check_schema(commit, parsed)
            return commit.put_schema(parsed)

        return self._store.submit(self.gateway_id, work).result()

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema: pushes to it are no longer checked, and the lake gets no further columns for it.

        Rows, and the columns that the lake's table has, stay as they are.

        Returns:
            The version of that; a schema that is registered later has a higher one.

        Raises:
            NotFoundError: the table has none.
        """
        return self._store.submit(self.gateway_id, lambda commit: commit.retire_schema(table)).result()

    def add_names(self) -> None:
        """Add the names of registered schemas to those of the namespace, where they are missing."""
        if self._store.read(self.gateway_id, self.names.missing).result():
            self._store.submit(self.gateway_id, self.names.add_registered).result()

    def ensure_schema(self, schema: TableSchema) -> bool:
        """Register a table's schema unless the table has one, or had one that was retired; whether it was registered.

        Raises:
            SchemaError: as `register_schema`.
        """
        config = self.config()
        if schema.table in config.schemas or schema.table in config.retired:
            return False
        self.register_schema(schema)
        return True

    def set_rules(self, rules: SyncRules) -> int:
        """Put sync rules in force; the new rules version.

        Nobody is shown from here on what they forbid. Rows are brought in line in the background, a few at once; a
        gateway of few rows is done when this returns.
        """
        version = self._store.submit(self.gateway_id, lambda commit: commit.put_rules(rules)).result()
        self.continue_reindex()
        return version

    def continue_reindex(self) -> None:
        """Go on bringing rows in line with rules that changed, where that is not done."""
        if self._store.read(self.gateway_id, self.rules.is_in_line).result():
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
        """Set which rows a client may push to from here on."""
        self._store.submit(self.gateway_id, lambda commit: commit.put_write_scope(scope)).result()

    def request_flush(self) -> None:
        """Ask the pipeline to carry what waits to the lake now."""
        self._store.request_flush(self.gateway_id)

    def backlog(self) -> list[Backlog]:
        """What waits for the lake, shard by shard."""
        return [shard for shard in self._store.backlog() if shard.gateway == self.gateway_id]

    def stats(self) -> GatewayStats:
        """What waits for the lake, over all shards."""
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
        ready = request.made_ready()

        def work(commit: Commit) -> PushResult:
            self.newest_arrival = commit.arrival
            return push_work(commit, ready, self.rules, self._limits, self.names)

        return self._store.submit(self.gateway_id, work)

    def _page(self, request: PullRequest) -> Future[SyncPage]:
        reading = self._store.read(self.gateway_id, lambda view: self.sources.read_page(view, request))
        return _then(reading, lambda page: self._answer(request, page))

    def _answer(self, request: PullRequest, reading: Reading) -> Future[SyncPage]:
        if reading.access.directly is not None:
            self._reindexer.start()
        settled = settled_cursor(request, reading)
        if settled is not None:
            return _done(reading.answer(settled))
        return self._store.submit(
            self.gateway_id, lambda commit: remember_page(commit, request, reading, self.sources.read_page)
        )


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _then(source: Future[T], follow: Callable[[T], Future[U]]) -> Future[U]:
    """A future of the future that `follow` makes of the result."""
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
