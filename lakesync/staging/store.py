"""The protocols of a staging store: what gateways commit to (`StagingStore`) and pipelines read from (`PipelineStore`).

`SqliteStore`, `PostgresStore`, `MemoryStore` and `ShardedStore` implement them, `RemoteStore` the second one only. One
conformance suite (`tests/conformance/test_staging_*.py`) runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, RowDelta, RowKey, StoredConnector
from lakesync.rules.model import SyncRules
from lakesync.staging.encoded_feed import FeedRange, FullRow, Reader
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.notices import Listener, Presence
from lakesync.staging.records import (
    ActionEntry,
    ActionRecord,
    Backlog,
    Batch,
    Checkpoint,
    ClientRecord,
    CutPoint,
    Entry,
    Erasure,
    GatewayConfig,
    LedgerDay,
    LogEntry,
    LogSource,
    Move,
    Reindex,
    StoredRow,
    WriteScope,
)
from lakesync.wire.log import PackedDeltas

T = TypeVar("T")


class View(Protocol):
    """A consistent read of one gateway: everything up to `arrival`, nothing that may be rolled back."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""

    @property
    def epoch(self) -> int:
        """The store's epoch. A restored or rebuilt store has another one."""

    @property
    def arrival(self) -> int:
        """The newest safe arrival: no commit up to it becomes visible later."""

    @property
    def config(self) -> GatewayConfig:
        """The active schemas and rules of this read."""

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`; rows that were never written are absent.

        Copy a row before changing it.
        """

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """Return entries with `since < changed <= arrival`, ordered by `changed`.

        The cost depends on the number of results and buckets only.

        Args:
            buckets: keys; an entry is under one of them.
            since: arrival.
            limit: the most entries.
        """

    def full_rows(self, bucket: str, since: int, limit: int) -> list[FullRow]:
        """Return entries of one bucket like `entries_after`, each with its row encoded as it is sent."""

    def read_range(
        self, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader
    ) -> FeedRange | None:
        """Return about `limit` entries with `since < changed <= until`, in order, as one encoded range.

        Args:
            buckets: the entries are under these keys or `reader.own`; the reader may see what is inside any of these
                keys.
            since: arrival.
            until: arrival.
            limit: about how many entries.
            reader: the client.

        Returns:
            None if there is no entry, if any row is neither one that the reader lacks entirely nor one that it needs
            nothing of, or if the store cannot answer quickly.
        """

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these buckets, in any order."""

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Return whether any entry under `buckets` has `changed > since`."""

    def unnotified(self, buckets: Collection[str], since: int) -> Collection[str]:
        """Return the changed ones of `buckets` whose notice may not have been delivered yet.

        A bucket is changed if it has an entry with `changed > since`. A store that notifies its listeners of each
        commit before it shows it to readers returns nothing.
        """

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`."""

    def spelled_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Return the stored spelling of tables and columns in a namespace of the lake, by their lower-case forms."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return jobs for a destination's tables, ordered by id: those that wait, or those that were set aside."""

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if the client was never seen or its record was deleted."""

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index; None if rules never changed."""

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Return the cursors by shard of a broadcast cursor; None if it is unknown."""

    def newest_shared_cursor(self) -> int:
        """Return the highest broadcast cursor; 0 if there is none."""

    def told_of_shard(self, shard: str) -> bool:
        """Return whether any client has a cursor that stands for rows of this shard."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """Return a client's action by its id, otherwise by its idempotency key."""

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """Return attempts at actions, newest first.

        Args:
            before: only attempts with a lower `seq`; None for all.
            limit: the most attempts.
        """

    def connectors(self) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name."""

    def erasures(self) -> list[Erasure]:
        """Return every erasure, in order."""

    def predates_erasure(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint may contain values that were erased after it was made."""


class Commit(View, Protocol):
    """One transaction: it becomes durable and visible as a whole, or not at all.

    The commits of one gateway run one after another, in arrival order, also across processes. A commit reads its own
    writes. If the work raises, its writes are rolled back; other work of the same group commit is not affected.
    """

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of this gateway's bodies that the lake has not confirmed."""

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return `(hlc, id digest)` of the client's accepted deltas with `low <= hlc <= high`, also of trimmed ones."""

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""

    def next_arrivals(self, count: int) -> range:
        """Return `count` new arrivals, `ARRIVAL_STEP` apart, above all earlier ones, by the server's clock."""

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row with the next `seq`, its ids, and its share of the ledger.

        Args:
            client_id: of the sender.
            deltas: of the push.
            arrival: the push's last arrival.
            claims: of the sender, as far as the rules read them.
        """

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Notify all processes of the gateway which clients are connected, once the commit is visible."""

    def unfolded_rows(self, keys: Collection[RowKey]) -> Mapping[RowKey, StoredRow]:
        """Return rows like `rows`; some of them may still have UPDATEs that `StoredRow.fold` has to merge."""

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries.

        The entry under each key of a row changes at least to the row's arrival. The store keeps the row objects, so
        they must not be changed afterwards.

        Args:
            rows: each key once.
            moves: changes of entries that the rows do not imply, as for `put_moves`.
        """

    def put_moves(self, moves: Collection[Move]) -> None:
        """Store changes of feed entries, applied in this order.

        `join` sets since = changed = arrival and inside, and first if it was 0. `stay` sets changed. `leave` sets left
        = changed = arrival and not inside. `own` sets changed = arrival, and first if it was 0, never inside.
        """

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""

    def put_schema(self, schema: TableSchema) -> int:
        """Register or evolve a schema, and return its version.

        Raises:
            SchemaError: the change is not additive; the message names the column.
        """

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema, and return the version of that; a schema registered later has a higher version.

        Raises:
            NotFoundError: the table has no schema.
        """

    def put_rules(self, rules: SyncRules) -> int:
        """Activate sync rules, and return their version. The caller re-indexes rows in the same commit."""

    def run_alone(self) -> None:
        """Require that this work is a commit of its own, with rows as durable as the log before and after it.

        Call it early: the store may undo what the work did and run it again from its start. Readers see such work's
        changes to rows only once they are durable, so it may make changes that no log row records.
        """

    def put_reindexing(self, mark: Reindex) -> None:
        """Store the position of a re-index."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Store the cursors by shard of a broadcast cursor; delete broadcast cursors below `forget_below`."""

    def spell_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names of tables and columns that a namespace lacks; return all spellings, by lower-case form."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job for a destination's table, unless one with its id exists."""

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job and return its body; None if there is none."""

    def put_write_scope(self, scope: WriteScope) -> None:
        """Set which rows clients may push to."""

    def put_action(self, record: ActionRecord) -> None:
        """Store an action's record; it replaces records of its client with the same id or idempotency key."""

    def drop_actions(self, touched_before_ms: int) -> None:
        """Delete the actions whose `touched_ms` is lower."""

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Record an attempt at an action, keep the newest `keep`, and return its `seq`, which counts from 1."""

    def put_connector(self, connector: StoredConnector) -> None:
        """Register a connector; it replaces one with its name."""

    def drop_connector(self, name: str) -> bool:
        """Delete a connector; return False if there is none with this name."""

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after a key: a re-index reads all rows this way."""

    def put_erasure(self, erasure: Erasure) -> None:
        """Store an erasure; it replaces the one with its `seq`."""

    def filter_erased(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """Return one client's deltas as they may be stored; the same sequence if no erasure covers any of them.

        Covered deltas lose their values. They are still stored, because the client may have their rows and must be sent
        the DELETE.
        """

    def redact(self, after: int, limit: int, covers: Callable[[RowDelta], bool]) -> tuple[int | None, int]:
        """Remove the values of covered deltas from the next `limit` log rows that have a body.

        Args:
            after: the `seq` after which to continue; 0 at first.
            limit: the most log rows to read.
            covers: returns whether a delta is covered.

        Returns:
            The `seq` after which to continue, None at the end, and the number of redacted deltas.
        """

    def forget_client(self, client_id: str) -> None:
        """Remove a client's claims from the log, and the results of its actions."""


class Replayer(Protocol):
    """The functions of the engine that a store calls: to replay its journal, and to write rows outside of a push."""

    def replay(self, commit: Commit, entry: LogEntry) -> None:
        """Apply a log row's deltas to rows and entries, with their original arrivals."""

    def reindex(self, commit: Commit) -> None:
        """Start a re-index of all rows by the active rules, now or when the store is open."""

    def rewrite_rows(self, commit: Commit, rows: Sequence[StoredRow]) -> None:
        """Store rows that were changed without a push, with their bucket keys and moves."""


class PipelineStore(Protocol):
    """What pipelines need of a store. Every call can be repeated. `staging.remote` offers it over HTTP."""

    def gateways(self) -> list[str]:
        """Every gateway id of the store."""

    def backlog(self) -> list[Backlog]:
        """Return each shard's backlog, also of gateways with nothing unflushed."""

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Return a gateway's schemas and rules."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the connectors that were registered at run time, ordered by name.

        Secrets in them are sealed, or references.
        """

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """Return the open batch, or a new one over a prefix of the unflushed log; None if nothing is unflushed.

        A planned batch does not change until it is confirmed, whatever is pushed meanwhile and whoever calls. It
        contains at least one push, only pushes of one UTC day of arrival, and otherwise at most `max_deltas`.

        Args:
            gateway: its id.
            shard: of the gateway.
            max_deltas: most deltas of a batch of several pushes.
            through: a new batch contains no higher arrival; None for no bound.
            since: no new batch is planned if the unflushed log begins at a lower arrival; None for no bound.
        """

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read back and contains a batch; a repeat changes nothing.

        Args:
            batch_id: of the batch.
            deltas: count of the batch's deltas in the lake.
            id_sum: sum of their id numbers, modulo 2**64.
            snapshot_id: the Iceberg snapshot that was read.

        Raises:
            IntegrityError: count or sum differ from the log's; nothing is changed.
            NotFoundError: no such batch was planned.
        """

    def trim(self, gateway: str, shard: str) -> int:
        """Delete the bodies of confirmed batches that are in `state.db` too; ids stay. Return the freed bytes."""

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Return every arrival day of a gateway, in order."""

    def request_flush(self, gateway: str) -> None:
        """Record that a flush was requested: `backlog` reports it until a batch up to now is confirmed."""

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the point at which a checkpoint can be made once the lake contains everything that is unflushed now.

        Shards that are behind advance to the arrival of the others.

        Raises:
            StagingUnavailableError: the shards did not meet at one arrival; a repeat may succeed.
        """

    def publish_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Publish a checkpoint; return False if this epoch has one at the same or a later arrival."""

    def newest_checkpoint(self, gateway: str) -> Checkpoint | None:
        """Return the newest published checkpoint of the store's epoch."""

    def marks(self) -> dict[str, str]:
        """Return the stored marks, name to JSON text: those of followers of the lake, and the pipeline's report."""

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark; it replaces one with its name."""

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Return where tasks read a shard's log.

        The table has the columns gateway, shard, epoch, seq, arrival, client_id and body.
        """

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase all values that a row ever had from staging, and send a DELETE to the clients that have it.

        Raises:
            NotFoundError: there never was such a row.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erase_client(self, gateway: str, client_id: str) -> Erasure:
        """Erase everything that a client ever wrote from staging, and its record.

        Raises:
            NotFoundError: there never was such a client.
            StagingUnavailableError: the erasure is recorded but not complete; a repeat continues it.
        """

    def erasures(self, gateway: str) -> list[Erasure]:
        """Return every erasure, in order. The lake still has to execute those without `lake_ms`."""

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Merge older deltas, read from the lake, that an erasure's deltas had overwritten; a repeat changes no row.

        The erasure gets a new arrival, so that checkpoints from before are not served any more.

        Raises:
            NotFoundError: there is no such erasure.
        """

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has executed an erasure; a repeat changes nothing.

        Raises:
            NotFoundError: there is no such erasure.
        """


OpenStaging = Callable[[], AbstractContextManager[PipelineStore]]
"""Opens a store in the process that calls it; it is sent to Spark's tasks as a value."""


class StagingStore(PipelineStore, Protocol):
    """A complete store, as the engine uses it."""

    @property
    def shared(self) -> bool:
        """Whether other processes may use the store at the same time."""

    def open(self, replayer: Replayer) -> None:
        """Apply migrations, and replay what the last owner did not write to `state.db`.

        Raises:
            StagingVersionError: the store was written by a newer version.
            StagingUnavailableError: it cannot be reached, or has another owner.
        """

    def close(self) -> None:
        """Complete what was submitted, write behind, and release everything."""

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway with a new epoch, unless it exists."""

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future completes when that is durable, with what `work` returned or raised.

        Work of one gateway runs in order of submission; several works may share one commit (group commit). A work may
        be run again from its start if it was rolled back, so it must change nothing but its commit.

        Raises (in the future):
            NotFoundError: there is no such gateway.
            StagingUnavailableError: the commit failed, or its outcome is unknown; a repeat is safe.
        """

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a consistent view, which contains everything that was acknowledged before the call."""

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` when a gateway has new visible arrivals, whichever process committed them.

        Notices are never ahead of what `read` shows. They may be combined, may name more bucket keys than changed, and
        come from a thread of the store: a listener must return quickly and must not wait for the store. After a lost
        connection, every gateway gets a notice.

        Returns:
            A function that removes the listener; a call in progress may still arrive.
        """
