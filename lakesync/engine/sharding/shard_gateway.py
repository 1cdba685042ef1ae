"""The gateway of one shard: a `SyncGateway` with the additional operations that a sharded gateway needs."""

from __future__ import annotations

from concurrent.futures import Future

from msgspec.structs import replace

from lakesync.engine.gateway import SyncGateway
from lakesync.engine.pulling import PullRequest, begin_again, read_page
from lakesync.engine.pushing import CheckedPush, check_work
from lakesync.feed.client_state import current
from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, PushResult, SyncPage, SyncPull, SyncPush
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import PushCommit


class ShardGateway(SyncGateway):
    """A gateway over one shard's store. Its requests have passed the checks that need no store."""

    def submit_check(self, push: SyncPush, claims: Claims, *, trusted: bool = False) -> Future[None]:
        """Check whether `submit_part` would accept a push; nothing is stored.

        Args:
            push: this shard's part.
            claims: the verified claims of the client's token.
            trusted: whether the write scope does not apply.

        Raises (in the future):
            SchemaMismatchError, ForbiddenError, BackpressureError: as `submit_push`.
        """
        request, names = CheckedPush(push, claims, self._wall(), trusted=trusted), self.names.of_push()

        def work(commit: PushCommit) -> None:
            self.newest_arrival = commit.arrival
            check_work(commit, request, self.rules, self._limits, names)

        return self._submit_checked(work, names)

    def submit_part(
        self, push: SyncPush, claims: Claims, seen: int | None, *, admitted: bool, trusted: bool = False
    ) -> Future[PushResult]:
        """Commit this shard's part of a push.

        Args:
            push: this shard's part.
            claims: the verified claims of the client's token.
            seen: this shard's cursor that the client certainly has.
            admitted: whether `submit_check` accepted it, so that it must not be rejected any more.
            trusted: whether the write scope does not apply.
        """
        return self._push(CheckedPush(push, claims, self._wall(), seen, admitted, trusted))

    def submit_share(self, asked: PullRequest, pull: SyncPull, max_bytes: int) -> Future[SyncPage]:
        """Return this shard's part of a page.

        Args:
            asked: the pull of the sharded gateway.
            pull: the pull of this shard, with its cursor and the number of deltas left.
            max_bytes: bytes left in the page.
        """
        live = asked.live or not asked.confirmed
        return self._page(asked._replace(pull=pull, now_ms=self._wall(), live=live, max_bytes=max_bytes))

    def submit_lacks(self, pull: SyncPull, claims: Claims, *, resync_refused: bool, confirmed: bool) -> Future[bool]:
        """Return whether a pull would return anything; nothing is recorded.

        Args:
            pull: the pull of this shard.
            claims: the verified claims of the client's token.
            resync_refused: as for `submit_pull`.
            confirmed: as for `submit_pull`.

        Raises (in the future):
            ResyncRequiredError: as `submit_pull`.
        """
        request = self._look(pull, claims, resync_refused, confirmed)
        return self._store.read(self.gateway_id, lambda view: bool(read_page(view, request, self.rules).page.deltas))

    def submit_begin(self, pull: SyncPull, claims: Claims, *, resync_refused: bool, confirmed: bool) -> Future[bool]:
        """Like `submit_lacks`, for a client that starts again, which is recorded.

        Args:
            pull: the pull of this shard.
            claims: the verified claims of the client's token.
            resync_refused: as for `submit_pull`.
            confirmed: as for `submit_pull`.

        Raises (in the future):
            ResyncRequiredError: as `submit_pull`.
        """
        request = self._look(pull, claims, resync_refused, confirmed)
        return self._store.submit(self.gateway_id, lambda commit: begin_again(commit, request, self.rules))

    def _look(self, pull: SyncPull, claims: Claims, resync_refused: bool, confirmed: bool) -> PullRequest:
        """Return the request that finds whether a pull would return anything."""
        return PullRequest(replace(pull, max_deltas=1), claims, resync_refused, confirmed, self._wall())

    def check_names(self, schema: TableSchema) -> None:
        """Add the names of a schema to those of the namespace.

        Raises:
            SchemaError: a name differs from a known one only in case.
        """
        self._store.submit(self.gateway_id, lambda commit: self.names.check_schema(commit, schema)).result()

    def has_checkpoint(self) -> bool:
        """Return whether this shard has a checkpoint."""
        return self._store.newest_checkpoint(self.gateway_id) is not None

    def submit_knows(self, client_id: str) -> Future[bool]:
        """Return whether this shard has a record of a client."""

        def look(view: ClientView) -> bool:
            return current(view.client(client_id), view.epoch) is not None

        return self._store.read(self.gateway_id, look)
