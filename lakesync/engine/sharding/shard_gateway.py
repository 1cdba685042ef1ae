"""The gateway of one shard: a `SyncGateway` with the additional operations that a sharded gateway needs.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. `ShardedGateway` creates a `ShardGateway` for each, and calls several of them, one after another, in
generators (`engine.futures.Steps`). Their cursors are those of the shard's own feed, which clients never see. A *delta*
is a change of a row, an *arrival* the gateway's own timestamp of a commit. *Claims* are the fields of a client's token.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from lakesync.engine.futures import Steps
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.inspection.peek import PeekPage, peek
from lakesync.engine.names import PushNames
from lakesync.engine.page_reading import PullRequest, read_page
from lakesync.engine.pulling import remember_restart
from lakesync.engine.pushing import PushRequest, dry_run_push
from lakesync.feed.client_state import current_record
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, PushResult, RowDelta
from lakesync.staging.cut_point import advance_to
from lakesync.staging.records import CutPoint
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import PushCommit

T = TypeVar("T")


def of_shard(name: str, future: Future[T]) -> Steps[T]:
    """Wait for a future of one shard, and return its result. Use it with `yield from`.

    Args:
        name: the shard's name.
        future: a future of an operation in the shard.

    Raises:
        StagingUnavailableError: the shard's store does not respond; the message names the shard.
            Any other error of the future is raised unchanged.
    """
    try:
        result: T = yield future
    except StagingUnavailableError as error:
        message = f"shard {name!r} does not respond, but is needed (tables of other shards can be pushed to)"
        raise StagingUnavailableError(message, details=str(error), retry_after=error.retry_after) from error
    return result


class NewNamesError(Exception):
    """Rolls back the check of a push that would store new names; see `ShardGateway.submit_check`."""


class ShardGateway(SyncGateway):
    """A gateway over one shard's store. Its requests have passed the checks that need no store."""

    def submit_check(self, request: PushRequest, *, stores_names: bool = False) -> Future[None]:
        """Check whether `submit_push_part` would accept a push; no delta is stored.

        Args:
            request: this shard's part of the push.
            stores_names: whether new names of tables and columns are stored, in their spelling.

        Raises (in the future):
            SchemaMismatchError, ForbiddenError, BackpressureError: as `submit_push`.
            NewNamesError: it would accept the push, which may have new names, and `stores_names` is false.
        """

        def check(commit: PushCommit, names: PushNames) -> None:
            dry_run_push(commit, request, self.rules, self._limits, names)
            if names.has_new and not stores_names:
                raise NewNamesError  # rolls back the names

        return self._submit_checked(check)

    def mark_client_records_lost(self) -> None:
        """If this shard is empty, record that the clients' records are lost, before deltas are restored."""
        self._mark_client_records_lost()

    def restore(self, deltas: Sequence[RowDelta]) -> None:
        """Commit this shard's part of the deltas that `rehydrate` restores.

        Raises:
            StagingUnavailableError: the store does not respond; a repeat continues.
        """
        self._restore(deltas)

    def submit_push_part(self, request: PushRequest) -> Future[PushResult]:
        """Commit this shard's part of a push.

        Args:
            request: this shard's part, with a cursor of this shard; without deltas, it only returns the client's cursor
                after the push.

        Raises (in the future):
            SchemaMismatchError, ForbiddenError, BackpressureError: as `submit_push`, unless `already_accepted`.
        """
        return self._push(lambda: request)

    def submit_peek_part(self, claims: Claims, since: str | None, limit: int, max_bytes: int) -> Future[PeekPage]:
        """Return this shard's part of a page of `submit_peek`, read without a client's record (`inspection.peek`).

        Args:
            claims: the verified claims of the client's token.
            since: this shard's cursor; None for all rows; `now` for later changes only.
            limit: deltas left in the page.
            max_bytes: bytes left in the page.

        Raises (in the future):
            ValidationError, ResyncRequiredError: as `submit_peek`.
        """
        return self._store.read(self.gateway_id, lambda view: peek(view, claims, since, limit, self.rules, max_bytes))

    def submit_has_changes(self, request: PullRequest) -> Future[bool]:
        """Return whether a pull of this shard would return any deltas; nothing is recorded.

        Raises (in the future):
            ResyncRequiredError: the cursor cannot be served, and `request.knows_resync` is true.
        """
        return self._store.read(self.gateway_id, lambda view: bool(read_page(view, request, self.rules).page.deltas))

    def submit_restart(self, request: PullRequest) -> Future[bool]:
        """Like `submit_has_changes`, for a client whose cursor in this shard is 0 or unknown: it starts again here.

        Its record in this shard then says so, although it is sent nothing yet. Otherwise, the response to a push before
        its next page would be computed from its earlier position.

        Raises (in the future):
            ResyncRequiredError: the cursor cannot be served, and `request.knows_resync` is true.
        """
        return self._store.submit(self.gateway_id, lambda commit: remember_restart(commit, request, self.rules))

    def submit_advance(self, arrival: int) -> Future[CutPoint]:
        """Raise this shard's arrival: all pushes up to `arrival` have ended then, and later ones get a greater one."""
        return self._store.submit(self.gateway_id, advance_to(arrival))

    def check_names(self, schema: TableSchema) -> None:
        """Check the names in a schema, and store them as known spellings.

        Raises:
            SchemaError: a name differs only in case from one in the same namespace of the lake.
        """
        self._store.submit(self.gateway_id, lambda commit: self.names.check_schema(commit, schema)).result()

    def has_checkpoint(self) -> bool:
        """Return whether this shard has a checkpoint."""
        return self._store.newest_checkpoint(self.gateway_id) is not None

    def submit_has_record(self, client_id: str) -> Future[bool]:
        """Return whether this shard has a record of a client, which shows that the client pushed or pulled here."""

        def has_record(view: ClientView) -> bool:
            return current_record(view.client(client_id), view) is not None

        return self._store.read(self.gateway_id, has_record)
