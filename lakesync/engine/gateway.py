"""`SyncGateway`: one app's stream of changes, with all of its operations.

Routes, WebSocket channels and embedding apps call it. Each operation submits a transaction or a read to the *staging
store*, the database that pushes are committed to; the modules beside this one contain the functions that it runs. The
base classes have the methods for the configuration, for *actions* (calls that clients request of external systems) and
for *adapters* (databases and object stores to which the gateway flushes, or from which clients pull); this class has
those for pushes and pulls.

A *client* is a device with its own database. It *pushes* its changes (*deltas*), and *pulls* pages of changes by others
from the *feed*: the gateway's rows in the order of their latest change. A *cursor* says up to where the client has it.
A *broadcast* is a page that the server sends over a WebSocket without a request. *Sync rules* and the *claims* of its
token decide which rows the client may see, the *write scope* to which rows it may push. The store has a *record* of
each client: what it was sent, and under which rules and claims. A *sharded* gateway has its tables in several stores;
it is a subclass, in `engine.sharding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import TypeVar

from lakesync.engine.action_gateway import ActionGateway
from lakesync.engine.adapter_gateway import AdapterGateway
from lakesync.engine.checkpoint_start import not_served_reason, start_from
from lakesync.engine.checks import MAX_PUSH, check_client, check_page_size, check_pull, check_push
from lakesync.engine.configuration_gateway import ConfigurationGateway
from lakesync.engine.futures import Steps, run
from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.explain import explain
from lakesync.engine.inspection.explanation import Explanation
from lakesync.engine.inspection.lag import LagQuery, Unsent, oldest_unsent
from lakesync.engine.inspection.peek import PeekPage, peek
from lakesync.engine.names import PushNames
from lakesync.engine.page_reading import PullRequest, Reading, unrecorded_cursor
from lakesync.engine.pulling import remember_page
from lakesync.engine.pushing import PushRequest, commit_push
from lakesync.engine.subscribers import Newcomer, ScanResult, SubscriberGroup, SubscriptionState
from lakesync.engine.subscriptions import resume, scan, subscribe
from lakesync.model.errors import BackpressureError, NotFoundError, RejectedError
from lakesync.model.types import Claims, PushResult, SyncPage, SyncPull, SyncPush, SyncResponse
from lakesync.staging.notices import Presence
from lakesync.staging.records import Checkpoint
from lakesync.staging.store.push import PushCommit

T = TypeVar("T")


class SyncGateway(ConfigurationGateway, ActionGateway, AdapterGateway):
    """A gateway over a staging store. `Engine` creates one for each gateway id; methods may be called from any thread.

    `submit_…` methods return a future, which completes when what they stored is durable. "Raises (in the future)" lists
    the errors with which it may end. All other methods wait for the store, and raise StagingUnavailableError if it does
    not respond.
    """

    _newest_arrival = 0

    @property
    def newest_arrival(self) -> int:
        """The newest arrival (the gateway's timestamp of a commit) before the last push to this process, or 0.

        A rejection is recorded with it, to see later whether the row changed since. A sharded gateway overrides this.
        """
        return self._newest_arrival

    def submit_push(self, receive: Callable[[], PushRequest]) -> Future[PushResult]:
        """Accept a client's deltas, all or none. A repeated push is accepted and changes nothing.

        A push that `receive` decodes needs a fifth less processor time than one that is decoded before (`scripts/bench
        push`), because its objects need not move from one processor to another.

        Args:
            receive: returns the push. It runs in the thread that commits the push, if the store has one, and otherwise
                in any thread, several times or never. So it must have no side effects.

        Returns:
            A future of the result, with the client's new cursor.

        Raises (in the future):
            ValidationError, ForbiddenError, ClockDriftError, SchemaMismatchError: nothing was stored; `rejected` names
                every rejected delta.
            BackpressureError: too many bytes are unflushed; nothing was stored.
            StagingUnavailableError: the push may or may not have been stored; it can be repeated.
            Exception: any error of `receive`; nothing was stored.
        """
        now = self._wall()
        is_recorded = False  # whether a rejection is recorded; False also if the push cannot be decoded

        def check() -> PushRequest:
            nonlocal is_recorded
            request = receive()._replace(now_ms=now)
            is_recorded = not request.trusted
            max_deltas = self._limits.max_deltas
            try:
                check_push(
                    request.push, request.claims, now, max(MAX_PUSH, max_deltas) if request.trusted else max_deltas
                )
            except RejectedError as error:
                if not error.rejected:  # the problem is not in the deltas
                    raise
                # the other deltas are checked too, so that the error lists every delta that is rejected
                request = request.without_rejected(error)
            if request.fault is not None and not request.push.deltas:
                raise request.fault
            return request

        def record(done: Future[PushResult]) -> None:
            """Record a rejected push, for the explain route.

            The decoded push is not kept for this, but decoded again. So the next push in the store's thread can use its
            memory, which is still in the processor's cache. That saves a tenth of the time of a push.
            """
            error = None if done.cancelled() else done.exception()
            if is_recorded and isinstance(error, RejectedError | BackpressureError):
                push, claims, *_ = receive()
                self.rejections.record(self.gateway_id, str(claims["sub"]), push.deltas, error, self.newest_arrival)

        try:
            pushing = self._push(check)
        except Exception as error:
            pushing = Future()
            pushing.set_exception(error)
        pushing.add_done_callback(record)
        return pushing

    def handle_push(
        self, push: SyncPush, claims: Claims | None = None, *, known_cursor: int | None = None
    ) -> PushResult:
        """Push deltas and wait; see `submit_push` for the errors.

        Args:
            push: the decoded request.
            claims: the verified claims of the client's token; None trusts the caller and the client id in the push.
            known_cursor: see `PushRequest.known_cursor`.
        """
        request = PushRequest(push, claims or {"sub": push.client_id}, known_cursor, trusted=claims is None)
        return self.submit_push(lambda: request).result()

    def submit_pull(
        self,
        pull: SyncPull,
        claims: Claims,
        *,
        knows_resync: bool = False,
        confirmed: bool = True,
        live: bool = False,
        has_not_pulled: bool = False,
    ) -> Future[SyncPage]:
        """Return a page of the changes that the client lacks and may see.

        Args:
            pull: the decoded request.
            claims: the verified claims of the client's token.
            knows_resync: whether the client understands the error RESYNC_REQUIRED. If its cursor cannot be served,
                ResyncRequiredError is raised for it; any other client is then sent every row as DELETE and INSERT.
            confirmed: whether the client sent the cursor itself, so that it has everything up to it. False for a page
                that the server sends without a request, from the cursor of the last page on the same connection. After
                such a page, the client may also get broadcasts, which are not recorded.
            live: whether the page is sent on the connection on which the client also gets broadcasts. If not, the
                process with that connection is notified that the client may have the page's rows.
            has_not_pulled: whether the cursor comes from `submit_resume`. The client may then have other rows than its
                record says.

        Returns:
            A future of the page; it has no deltas if the client lacks nothing. They may still be encoded, for a caller
            that sends them as JSON.

        Raises:
            ValidationError: `max_deltas` is out of range.
            ForbiddenError: the pull has another client's id than the token.
            NotFoundError: the pull names a source (a database beside the gateway's feed) that is not registered.
        Raises (in the future):
            AdapterError: the source cannot be read.
            ResyncRequiredError: the cursor cannot be served, and `knows_resync` is true.
            StagingUnavailableError: the store does not respond; the pull can be repeated.
        """
        check_pull(pull, claims)
        if pull.source is not None:
            return self.sources.submit_pull(pull.source, pull, claims, live=live)
        live = live or not confirmed  # a page without a request is sent on the connection that gets broadcasts
        return self.submit_page(
            PullRequest(
                pull,
                claims,
                knows_resync=knows_resync,
                confirmed=confirmed,
                now_ms=self._wall(),
                live=live,
                has_not_pulled=has_not_pulled,
            )
        )

    def submit_page(self, request: PullRequest) -> Future[SyncPage]:
        """Read a page of the gateway's own feed, and record it; a sharded gateway overrides this.

        If the client lacks anything here, the page has at least one row, even if the row exceeds its limits.

        Args:
            request: a pull that passed its checks: a client's or, in a shard, its part of one.

        Raises (in the future):
            ResyncRequiredError, StagingUnavailableError: as `submit_pull`.
        """
        reading = self._store.read(self.gateway_id, lambda view: self.sources.read_page(view, request))
        return run(self._record_page(request, reading))

    def handle_pull(self, pull: SyncPull, claims: Claims | None = None) -> SyncResponse:
        """Pull a page and wait; see `submit_pull` for the errors.

        Args:
            pull: the decoded request.
            claims: the verified claims of the client's token; None trusts the client id in the pull.
        """
        return self.submit_pull(pull, claims or {"sub": pull.client_id}).result().decoded()

    def submit_peek(self, claims: Claims, since: str | None, limit: int) -> Future[PeekPage]:
        """Return a page of what a client with these claims may see, its own writes included; nothing is recorded.

        Args:
            claims: the verified claims of a client's token.
            since: the cursor that the previous page returned; None for all rows; `now` for later changes only.
            limit: the most deltas of the page, from 1 to `MAX_PULL`; it never splits a row, so it may have some more.

        Raises:
            ValidationError: the limit is out of range.
        Raises (in the future):
            ValidationError: `since` is not a cursor that this method returned.
            ResyncRequiredError: the rules changed since the cursor was returned.
        """
        check_page_size(limit)
        return self._store.read(self.gateway_id, lambda view: peek(view, claims, since, limit, self.rules))

    def submit_unsent(self, queries: Sequence[LagQuery]) -> Future[list[Unsent | None]]:
        """Return the oldest change that each client was not sent yet, for the lag of clients; nothing is recorded.

        Args:
            queries: the clients, each with the result of the previous query.

        Returns:
            A future of the results, in the order of `queries`; None for a client that never pulled.
        """
        return self._store.read(
            self.gateway_id, lambda view: [oldest_unsent(view, query, self.rules) for query in queries]
        )

    def submit_explain(
        self, client_id: str, table: str, row_id: str, claims: Claims | None, tracked: TrackedCursor
    ) -> Future[Explanation]:
        """Explain why a client has a row or lacks it; nothing is recorded.

        Args:
            client_id: the client's id.
            table: the row's table.
            row_id: the row's id.
            claims: the client's claims; None uses those of its last pull, or its client id alone.
            tracked: what this process knows of the client; its WebSocket may be ahead of the stored record.
        """
        return self._store.read(
            self.gateway_id, lambda view: explain(view, client_id, table, row_id, claims, self.rules, tracked)
        )

    def submit_subscribe(self, newcomers: Sequence[Newcomer]) -> Future[list[SubscriptionState]]:
        """Subscribe connected clients to broadcasts: pages that the server sends over a WebSocket without a request.

        Args:
            newcomers: the clients.

        Returns:
            A future of the clients' new states, in their order. Clients with equal states share one object.
        """
        now = self._wall()
        return self._store.submit(self.gateway_id, lambda commit: subscribe(commit, newcomers, self.rules, now))

    def submit_resume(self, client_id: str, claims: Claims) -> Future[int | None]:
        """Return a cursor from which a client can get broadcasts before it pulls; None if it has no record.

        The client may have all, a part or nothing of what it was sent after that cursor, so broadcasts may repeat some
        of it. The client's record is changed: it gets broadcasts from now on, under these claims.

        Args:
            client_id: the client's id.
            claims: the verified claims of the connection's token.
        """
        return self._store.submit(self.gateway_id, lambda commit: resume(commit, client_id, claims, self.rules))

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the same store, and so have connections of the same clients."""
        return self._store.is_shared

    def submit_presence(self, presence: Sequence[Presence]) -> Future[None]:
        """Notify all processes of this gateway which clients are connected to this one.

        A client with connections to two processes may be sent the same rows on both, so each must know of the other.
        """
        return self._store.submit(self.gateway_id, lambda commit: commit.announce_presence(presence))

    def submit_scan(self, groups: Sequence[SubscriberGroup]) -> Future[list[ScanResult]]:
        """Return the changes that each group of subscribers lacks, for a broadcast; nothing is recorded.

        Args:
            groups: the subscribers by state.

        Returns:
            A future of the results, in the order of `groups`.
        """
        return self._store.read(self.gateway_id, lambda view: scan(view, groups, self.rules))

    def submit_checkpoint(self, client_id: str, claims: Claims) -> Future[Checkpoint]:
        """Return the checkpoint (a snapshot of all rows) from which a new client may start, and record that it did.

        Args:
            client_id: the client's id, which must be the token's `sub`.
            claims: the verified claims of the client's token.

        Raises:
            ForbiddenError: the client id is not the token's.
            NotFoundError: there is no checkpoint.
        Raises (in the future):
            NotFoundError: the store was rebuilt, the rules changed or data was erased since the checkpoint was made, or
                the client was seen before. The client has to pull instead.
        """
        check_client(client_id, claims)
        checkpoint = self._store.newest_checkpoint(self.gateway_id)
        if checkpoint is None:
            raise NotFoundError(f"gateway {self.gateway_id!r} has no checkpoint yet: pull from 0 instead")
        now = self._wall()
        return self._store.submit(
            self.gateway_id, lambda commit: start_from(commit, checkpoint, client_id, claims, self.rules, now)
        )

    def submit_not_served_reason(self) -> Future[str | None]:
        """Return why new clients are not sent the newest checkpoint; None if they are, or if there is no checkpoint."""
        checkpoint = self._store.newest_checkpoint(self.gateway_id)
        return self._store.read(
            self.gateway_id,
            lambda view: None if checkpoint is None else not_served_reason(view, checkpoint, self.rules),
        )

    def request_flush(self) -> None:
        """Request a flush from the data pipeline: a copy of the deltas in the staging store's log to the lake."""
        self._store.request_flush(self.gateway_id)

    def _push(self, check: Callable[[], PushRequest]) -> Future[PushResult]:
        """Submit a push; a sharded gateway overrides this.

        Args:
            check: returns the push after the checks that need no store. If it is called immediately, its error is
                raised here, otherwise in the future.

        Raises (in the future):
            All errors of `commit_push`.
        """
        if self.is_shared:  # prepare it first: the transaction has a lock for which other processes wait
            prepared = check().prepare()
            return self._submit_checked(
                lambda commit, names: commit_push(commit, prepared, self.rules, self._limits, names)
            )
        return self._submit_checked(
            lambda commit, names: commit_push(commit, check().prepare(), self.rules, self._limits, names)
        )

    def _submit_checked(self, job: Callable[[PushCommit, PushNames], T]) -> Future[T]:
        """Submit the transaction of a push, or of the check of a push.

        Args:
            job: the function to run, given the transaction and the check of the push's names. The names that it checks
                become known spellings once the commit is durable.
        """
        names = PushNames(self.names)

        @wraps(job)  # so that tests and profiles see the function's name
        def recorded(commit: PushCommit) -> T:
            self._newest_arrival = commit.arrival
            return job(commit, names)

        submitted = self._store.submit(self.gateway_id, recorded)
        submitted.add_done_callback(names.add_durable)
        return submitted

    def _record_page(self, request: PullRequest, read: Future[Reading]) -> Steps[SyncPage]:
        """Return the page with its cursor, after the client's record was stored if that is needed."""
        reading: Reading = yield read
        if reading.access.sees_by_values is not None:
            self._reindexer.start()  # rows are not all assigned to buckets yet: continue, in case an error stopped it
        cursor = unrecorded_cursor(request, reading)
        if cursor is not None:
            return reading.with_cursor(cursor)
        page: SyncPage = yield self._store.submit(
            self.gateway_id, lambda commit: remember_page(commit, request, reading, self.sources.read_page)
        )
        return page
