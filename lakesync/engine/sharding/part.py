"""One shard's share of a gateway: a gateway by itself, of which a sharded one asks a little more."""

from __future__ import annotations

from concurrent.futures import Future

from msgspec.structs import replace

from lakesync.engine.gateway import SyncGateway
from lakesync.engine.pulling import PullRequest, begin_again, read_page
from lakesync.engine.pushing import CheckedPush, check_work
from lakesync.feed.memory import current
from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, PushResult, SyncPage, SyncPull, SyncPush
from lakesync.staging.store import Commit, View


class Part(SyncGateway):
    """Over the shard's own store. What it is asked was checked, as far as that needs no store."""

    def submit_check(self, push: SyncPush, claims: Claims, *, trusted: bool = False) -> Future[None]:
        """Whether `submit_part` would refuse anything; nothing is kept.

        Raises (in the future):
            SchemaMismatchError, ForbiddenError, BackpressureError: as `submit_push`.
        """
        request = CheckedPush(push, claims, self._wall(), trusted=trusted)

        def work(commit: Commit) -> None:
            self.newest_arrival = commit.arrival
            check_work(commit, request, self.rules, self._limits, self.names)

        return self._store.submit(self.gateway_id, work)

    def submit_part(
        self, push: SyncPush, claims: Claims, seen: int | None, *, admitted: bool, trusted: bool = False
    ) -> Future[PushResult]:
        """As `submit_push`.

        Args:
            seen: the cursor of this shard.
            admitted: `submit_check` has let it pass, so nothing refuses it any more.
            trusted: the write scope does not apply to it.
        """
        return self._push(CheckedPush(push, claims, self._wall(), seen, admitted, trusted))

    def submit_share(self, asked: PullRequest, pull: SyncPull, max_bytes: int) -> Future[SyncPage]:
        """This shard's share of a page, as `submit_page`.

        Args:
            asked: the pull of the gateway.
            pull: the same for this shard, with its cursor and the deltas that are left.
            max_bytes: what is left of the page's bytes.
        """
        live = asked.live or not asked.confirmed
        return self._page(asked._replace(pull=pull, now_ms=self._wall(), live=live, max_bytes=max_bytes))

    def submit_lacks(self, pull: SyncPull, claims: Claims, *, resync_refused: bool, confirmed: bool) -> Future[bool]:
        """Whether a pull would bring anything; nothing is remembered of it.

        Raises (in the future):
            ResyncRequiredError: as `submit_pull`.
        """
        look = replace(pull, max_deltas=1)
        request = PullRequest(look, claims, resync_refused, confirmed, self._wall())
        return self._store.read(self.gateway_id, lambda view: bool(read_page(view, request, self.rules).page.deltas))

    def submit_begin(self, pull: SyncPull, claims: Claims, *, resync_refused: bool, confirmed: bool) -> Future[bool]:
        """As `submit_lacks`, of a client that starts again; that is remembered.

        Raises (in the future):
            ResyncRequiredError: as `submit_pull`.
        """
        look = replace(pull, max_deltas=1)
        request = PullRequest(look, claims, resync_refused, confirmed, self._wall())
        return self._store.submit(self.gateway_id, lambda commit: begin_again(commit, request, self.rules))

    def check_names(self, schema: TableSchema) -> None:
        """Add the names of a schema to those of the namespace.

        Raises:
            SchemaError: one differs from a known name only in case.
        """
        self._store.submit(self.gateway_id, lambda commit: self.names.check_schema(commit, schema)).result()

    def has_cut(self) -> bool:
        """Whether there is a checkpoint of this shard."""
        return self._store.newest_cut(self.gateway_id) is not None

    def submit_knows(self, client_id: str) -> Future[bool]:
        """Whether anything is known of a client here."""

        def look(view: View) -> bool:
            return current(view.client(client_id), view.epoch) is not None

        return self._store.read(self.gateway_id, look)
