"""Protocols of a staging store for a gateway's other transactions: one to read and one to write for each caller.

A *gateway* is one app's stream of changes. The engine changes its configuration, registers connectors (external systems
that execute actions or are polled), and stores the cursors of sharded gateways, whose tables are in several stores. A
*broadcast* is a page of changes that the server sends without a request; all its readers get one cursor.
`lakesync.actions` stores *actions*: commands of clients to connectors. `lakesync.flush` stores the *flush jobs* of a
flush without a pipeline, and `staging.erasing_store` the progress of *erasures*: permanent deletions of a row or a
client. A *delta* is a change of one row.

The *sync rules* decide which rows a client sees. A row is stored with the *bucket keys* that they give it. The *log*
has one row for each push, with the number `seq`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, StoredConnector
from lakesync.rules.model import SyncRules
from lakesync.staging.records import ActionEntry, ActionRecord, Checkpoint, Erasure, WriteScope
from lakesync.staging.store.push import NameCommit


class ConfigCommit(NameCommit, Protocol):
    """Changes schemas, rules and the write scope."""

    def put_schema(self, schema: TableSchema) -> int:
        """Register a table's schema, or add columns to the registered one; return its version.

        Raises:
            SchemaError: the change removes or changes a column; the message names the column.
        """

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema, after which pushes to the table are not checked; return the version of this change.

        A schema that is registered later has a higher version.

        Raises:
            NotFoundError: the table has no schema.
        """

    def put_rules(self, rules: SyncRules) -> int:
        """Activate sync rules, and return their version.

        The caller has to start a re-index, which gives all rows the bucket keys of the new rules. Like `run_alone`,
        this requires a transaction of its own.
        """

    def put_write_scope(self, scope: WriteScope) -> None:
        """Set which rows clients may push to."""


class ActionView(Protocol):
    """Reads actions, the attempts at them, and the connectors that execute them."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """Return a client's action by its id or, if no action has this id, by its idempotency key.

        Args:
            client_id: the client's id.
            action_id: the action's id.
            idempotency_key: a second key that the client gave the action; None if it gave none.

        Returns:
            The action; None if neither matches.
        """

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """Return attempts at actions, newest first.

        Args:
            before: return only attempts with a lower `seq`; None starts with the newest.
            limit: the most attempts to return.
        """

    def connectors(self) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""


class ActionCommit(ActionView, Protocol):
    """Stores actions, the attempts at them, and the connectors that execute them."""

    def put_action(self, record: ActionRecord) -> None:
        """Store an action's record; it replaces records of its client with the same id or idempotency key."""

    def drop_actions(self, touched_before_ms: int) -> None:
        """Delete the actions whose latest change was before a server wall time, in milliseconds since 1970."""

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Add an attempt at an action to the log of attempts, which admins read.

        Args:
            entry: the attempt; its `seq` is ignored.
            keep: how many of the newest attempts are kept; older ones are deleted.

        Returns:
            The attempt's `seq`, which counts from 1.
        """

    def put_connector(self, connector: StoredConnector) -> None:
        """Register a connector; it replaces one with its name."""

    def drop_connector(self, name: str) -> bool:
        """Delete a connector; return False if its name is unknown."""


class FlushJobView(Protocol):
    """Reads flush jobs: each updates a table of the destination after a flush without a pipeline."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return encoded jobs, ordered by id.

        Args:
            set_aside: whether to return jobs that failed and were set aside, instead of waiting jobs.
            limit: the most jobs to return.
        """


class FlushJobCommit(FlushJobView, Protocol):
    """Writes flush jobs."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job, unless one with its id exists.

        Args:
            job_id: the job's id.
            body: the encoded job.
            set_aside: whether the job failed and is set aside.
        """

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job and return its body; None if the job does not exist.

        Args:
            job_id: the job's id.
            set_aside: whether to look among the jobs that failed and were set aside, instead of the waiting ones.
        """


class SharedCursorView(Protocol):
    """Reads the broadcast cursors of a sharded gateway.

    They are sent to many clients at once, with a page over the WebSocket (a broadcast), and each names a cursor in
    each shard. Cursors that are sent to one client are in the client's record.
    """

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Return the cursor in each shard, by shard name, that a broadcast cursor names; None if it is unknown."""

    def newest_shared_cursor(self) -> int:
        """Return the highest broadcast cursor; 0 before the first broadcast."""

    def sent_rows_of_shard(self, shard: str) -> bool:
        """Return whether any client was sent rows of this shard, as the cursors show that clients were sent."""


class SharedCursorCommit(SharedCursorView, Protocol):
    """Stores the broadcast cursors of a sharded gateway."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Store a broadcast cursor, and delete old ones.

        Args:
            cursor: the cursor that clients are sent.
            parts: the cursor in each shard that it names, by shard name.
            forget_below: stored broadcast cursors below this are deleted.
        """


class ErasureView(Protocol):
    """Reads erasures."""

    def erasures(self) -> list[Erasure]:
        """Return every erasure, in order."""

    def predates_erasure(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint may contain values that were erased after it was made."""


class ErasureCommit(ErasureView, Protocol):
    """Records erasures, and removes the values that they cover from the log."""

    def put_erasure(self, erasure: Erasure) -> None:
        """Store an erasure; it replaces the one with its `seq`."""

    def redact(self, after: int, limit: int, covers: Callable[[RowDelta], bool]) -> tuple[int | None, int]:
        """Remove the values of covered deltas from the next log rows whose deltas are still in the log.

        The caller repeats this in several commits, so that pushes are served in between.

        Args:
            after: the `seq` of the log row after which to continue; 0 at first.
            limit: the most log rows to read.
            covers: returns whether the erasure covers a delta.

        Returns:
            The `seq` after which to continue, None at the end of the log; and the number of deltas that lost values.
        """

    def has_outcomes(self, client_id: str) -> bool:
        """Return whether a client has actions whose outcomes are not erased, or whose outcomes are still to come."""

    def forget_client(self, client_id: str) -> None:
        """Remove a client's claims from the log, and the results of its actions; `redact` does the deltas."""
