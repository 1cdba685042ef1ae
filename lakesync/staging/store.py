"""The staging store's protocols: what the gateway commits to and the pipeline reads from.

One conformance suite (`tests/conformance/test_staging_*.py`) runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims, RowDelta, RowKey, StoredConnector
from lakesync.rules.model import SyncRules
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.notices import Listener, Presence
from lakesync.staging.records import (
    ActionEntry,
    ActionRecord,
    Backlog,
    Batch,
    ClientRecord,
    Cut,
    Entry,
    Erasure,
    GatewayConfig,
    Hold,
    LedgerDay,
    LogEntry,
    LogSource,
    Move,
    Reindex,
    StoredRow,
    WriteScope,
)
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow
from lakesync.wire.log import PackedDeltas

T = TypeVar("T")


class View(Protocol):
    """A consistent reading of one gateway: everything up to `arrival`, nothing that may still be undone."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""

    @property
    def epoch(self) -> int:
        """The store's epoch; a restored or rebuilt store has another."""

    @property
    def arrival(self) -> int:
        """The newest safe arrival: no commit at or below it will become visible later."""

    @property
    def config(self) -> GatewayConfig:
        """Schemas and rules in force for this reading."""

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """The stored rows among `keys`, to be copied where they are to be changed; a row never written is absent."""

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """Entries under any of `buckets` with `since < changed <= arrival`, in order of `changed`, at most `limit`.

        The cost grows with what is returned and the number of buckets alone.
        """

    def whole_rows(self, bucket: str, since: int, limit: int) -> list[WholeRow]:
        """As `entries_after` for one bucket, each entry with its row ready to be sent whole."""

    def stretch(self, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader) -> Stretch | None:
        """Entries with `since < changed <= until`, in order of `changed`, about `limit`, joined.

        None where there is no entry, where a row is more to the reader than one that it lacks or need not be told of,
        and where the store cannot tell quickly.

        Args:
            buckets: under these and `reader.own`. What is inside of any of these, the reader may see.
        """

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Every entry of these rows under these buckets, in no order."""

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Whether any entry under `buckets` has `changed > since`."""

    def unheard(self, buckets: Collection[str], since: int) -> Collection[str]:
        """Those of `buckets` with an entry whose `changed > since`, of which listeners may not have been told yet.

        None where a store tells its listeners of each commit before it lets anybody read it.
        """

    def buckets(self, prefix: str) -> list[str]:
        """The bucket keys in use that start with `prefix`."""

    def spelled_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """How names of tables and columns are spelled in a namespace of the lake, by their folded forms."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Jobs of a destination's tables that wait, or that were set aside, in the order of their ids."""

    def client(self, client_id: str) -> ClientRecord | None:
        """What is known of a client; None when it was never seen or its record is gone."""

    def reindexing(self) -> Reindex | None:
        """How far rows are in line with rules that changed; None where they never did."""

    def shared_cursor(self, cursor: int) -> dict[str, int] | None:
        """Shard → cursor there, of one that many followers were told at once; None where it is not known."""

    def newest_shared_cursor(self) -> int:
        """The highest such cursor; 0 where there is none."""

    def told_of_shard(self, shard: str) -> bool:
        """Whether anybody was handed a cursor that stands for a place of this shard, behind rows."""

    def action(self, client_id: str, action_id: str, idempotency_key: str | None = None) -> ActionRecord | None:
        """A client's action by its id, else by its idempotency key."""

    def action_log(self, before: int | None, limit: int) -> list[ActionEntry]:
        """The newest `limit` attempts at actions with `seq < before`, newest first; all of them where it is None."""

    def connectors(self) -> list[StoredConnector]:
        """The connectors registered at run time, by name."""

    def erasures(self) -> list[Erasure]:
        """What was ever asked to be erased, in order."""

    def is_barred(self, cut: Cut) -> bool:
        """Whether a cut may hold what was erased since it was made."""


class Commit(View, Protocol):
    """One unit of work that becomes durable and visible as a whole, or not at all.

    Within one gateway, commits happen one after another, in arrival order, also across processes. What a commit wrote
    it also reads. When the work raises, nothing of it is kept and the others of its group are not disturbed.
    """

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of bodies not yet confirmed in the lake, this gateway."""

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """`(hlc, id digest)` of the client's accepted deltas with `low <= hlc <= high`, trimmed ones included."""

    def highest_hlc(self, client_id: str) -> int:
        """The client's highest accepted hlc; -1 when it has none."""

    def next_arrivals(self, count: int) -> range:
        """`count` new arrivals, `ARRIVAL_STEP` apart, above every one handed out before, by the server's clock."""

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row with the next dense `seq`, its ids, and its share of the ledger."""

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Tell all processes of the gateway which clients are connected, once the commit is visible."""

    def unfolded_rows(self, keys: Collection[RowKey]) -> Mapping[RowKey, StoredRow]:
        """As `rows`; of some rows `StoredRow.fold` may still have something to do."""

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Write rows whole, and feed entries.

        Under each key that a row has, its entry's `changed` becomes the row's arrival at least. The store keeps the
        rows, which must not be changed afterwards.

        Args:
            rows: each key once.
            moves: what rows do not tell of their entries themselves, as `put_moves` takes it.
        """

    def put_moves(self, moves: Collection[Move]) -> None:
        """Write feed entries, moved in this order.

        `join` sets since = changed = arrival, inside, and first where it was 0; `stay` sets changed; `leave` sets
        left = changed = arrival and not inside; `own` sets changed = arrival and first where it was 0, never inside.
        """

    def put_client(self, record: ClientRecord) -> None:
        """Write a client record whole."""

    def put_schema(self, schema: TableSchema) -> int:
        """Register a schema or evolve it; its version.

        Raises:
            SchemaError: the change is not additive; the message names the column.
        """

    def retire_schema(self, table: str) -> int:
        """Retire a table's schema; the version of that. Versions of another schema follow it.

        Raises:
            NotFoundError: the table has none.
        """

    def put_rules(self, rules: SyncRules) -> int:
        """Set the rules in force from here on; the new rules version. The caller re-indexes rows in the same commit."""

    def run_alone(self) -> None:
        """Have this work in a commit of its own, before and after which everything is as lasting as the log.

        To be called first: a store that has to runs the work again from its start. What such a work does to rows is
        seen by nobody before it is lasting, so it may do what no log row says.
        """

    def put_reindexing(self, mark: Reindex) -> None:
        """Write how far rows are in line with rules that changed."""

    def put_shared_cursor(self, cursor: int, parts: Mapping[str, int], *, forget_below: int) -> None:
        """Keep what a new cursor for many followers stands for, and forget those below another."""

    def spell_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names of tables and columns that a namespace lacks; how all are spelled, by their folded forms."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job of a destination's table; one that is there stays as it is."""

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job; what it was, None where it is not there."""

    def put_write_scope(self, scope: WriteScope) -> None:
        """Set what a push may change from here on."""

    def put_action(self, record: ActionRecord) -> None:
        """Write an action's record whole, in place of any of its client's with the same id or idempotency key."""

    def drop_actions(self, touched_before_ms: int) -> None:
        """Forget the actions with `touched_ms` below this."""

    def note_action(self, entry: ActionEntry, keep: int) -> int:
        """Add an attempt at an action, whose newest `keep` stay; its `seq`, which is counted here, from 1."""

    def put_connector(self, connector: StoredConnector) -> None:
        """Register a connector, in place of one with its name."""

    def drop_connector(self, name: str) -> bool:
        """Forget a connector; False where there is none."""

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Rows of the gateway in key order, after a key, for a re-index."""

    def put_erasure(self, erasure: Erasure) -> None:
        """Write a request to erase whole, in place of the one with its `seq`."""

    def spared(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """One client's deltas as they may be kept: the same where no erasure covers any.

        Those that one covers say nothing any more. That they came is kept all the same: the client may have their rows
        and has to be told.
        """

    def redact(self, after: int, limit: int, covers: Callable[[RowDelta], bool]) -> tuple[int | None, int]:
        """Take what they said from the covered deltas of the next `limit` log rows that have a body.

        Returns:
            The `seq` to go on from, None at the end, and the number of deltas redacted.
        """

    def blank_client(self, client_id: str) -> None:
        """Forget what is beside a client's deltas: its claims in the log and what its actions brought."""


class Replayer(Protocol):
    """What a journal-first store calls on opening, to make again what was committed but not yet written behind."""

    def replay(self, commit: Commit, entry: LogEntry) -> None:
        """Apply a log row's deltas to rows and entries, with the arrivals that it had."""

    def reindex(self, commit: Commit) -> None:
        """See to it that all bucket keys come in line with the rules in force, now or once the store is open."""

    def settle(self, commit: Commit, rows: Sequence[StoredRow]) -> None:
        """Write rows whose states were made otherwise than by a push, with their bucket keys and moves."""


class PipelineStore(Protocol):
    """What the pipeline needs of a store; safe to repeat every call. `staging.remote` speaks it over HTTP."""

    def gateways(self) -> list[str]:
        """Every gateway id of the store."""

    def backlog(self) -> list[Backlog]:
        """What waits, shard by shard, gateways with nothing waiting included."""

    def gateway_config(self, gateway: str) -> GatewayConfig:
        """Schemas and rules of a gateway."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """The connectors registered at run time, by name; their secrets are sealed or references."""

    def plan(
        self, gateway: str, shard: str, max_deltas: int, through: int | None = None, since: int | None = None
    ) -> Batch | None:
        """The open batch, or a new one over a whole prefix of the unflushed log; None when nothing waits.

        A planned batch stays as it is until it is confirmed, whatever is pushed meanwhile and whoever asks. A batch
        holds at least one push, of one UTC day of arrival, and otherwise at most `max_deltas`. A new one holds nothing
        above the arrival `through`, and is not planned where the unflushed log begins below the arrival `since`.
        """

    def confirm(self, batch_id: str, deltas: int, id_sum: int, snapshot_id: int | None = None) -> None:
        """Record that the lake was read, at a snapshot, and holds the batch; a repeat changes nothing.

        Raises:
            IntegrityError: count or sum differ from what the log holds; nothing is changed.
            NotFoundError: no such batch was planned.
        """

    def trim(self, gateway: str, shard: str) -> int:
        """Drop the bodies of confirmed batches that are also written behind; ids stay. Bytes freed."""

    def ledger(self, gateway: str) -> list[LedgerDay]:
        """Every arrival day that the gateway ever had, in order."""

    def request_flush(self, gateway: str) -> None:
        """Make the next `backlog` say that a flush was asked for; served when a batch up to then is confirmed."""

    def hold(self, gateway: str) -> Hold:
        """Where the gateway can be cut once everything that waits by now is in the lake.

        Shards that are behind go on to the arrival of the others.

        Raises:
            StagingUnavailableError: the shards did not meet; a repeat may.
        """

    def publish_cut(self, cut: Cut) -> bool:
        """Publish a cut whole; False when one at the same or a later arrival of this epoch already is."""

    def newest_cut(self, gateway: str) -> Cut | None:
        """The newest published cut of the store's epoch."""

    def marks(self) -> dict[str, str]:
        """Return the stored marks, name → JSON text: those of followers of the lake, and the pipeline's report."""

    def put_mark(self, name: str, body: str) -> None:
        """Store a mark, in place of an earlier one with its name."""

    def log_source(self, shard: str = MAIN_SHARD) -> LogSource:
        """Where Spark reads a shard's committed log rows.

        The table has columns gateway, shard, epoch, seq, arrival, client_id, body.
        """

    def erase_row(self, gateway: str, table: str, row_id: str) -> Erasure:
        """Erase what a row ever held from staging; who holds it is told by a DELETE.

        Raises:
            NotFoundError: there never was such a row.
            StagingUnavailableError: it is not done yet; a repeat goes on with it.
        """

    def erase_client(self, gateway: str, client_id: str) -> Erasure:
        """Erase everything that a client ever wrote from staging, and what is known of it beside that.

        Raises:
            NotFoundError: there never was such a client.
            StagingUnavailableError: it is not done yet; a repeat goes on with it.
        """

    def erasures(self, gateway: str) -> list[Erasure]:
        """What was ever asked to be erased, in order: the lake has yet to erase what has no `lake_ms`."""

    def restore(self, gateway: str, seq: int, deltas: Sequence[RowDelta]) -> Erasure:
        """Take in what the deltas of an erasure had hidden, as the lake still knows it; a repeat changes no row.

        The erasure's arrival is a new one afterwards, so that no cut from before is handed out any more.

        Raises:
            NotFoundError: there is no such request.
        """

    def confirm_erasure(self, gateway: str, seq: int) -> None:
        """Record that the lake has erased it too; a repeat changes nothing.

        Raises:
            NotFoundError: there is no such request.
        """


OpenStaging = Callable[[], AbstractContextManager[PipelineStore]]
"""Opens a store, in whichever process it is called; goes to tasks of Spark as a value."""


class StagingStore(PipelineStore, Protocol):
    """The whole store, as the engine holds it."""

    @property
    def shared(self) -> bool:
        """Whether other processes may work on it too."""

    def open(self, replayer: Replayer) -> None:
        """Apply migrations, replay what the last owner left, make ready.

        Raises:
            StagingVersionError: the store was written by a newer version.
            StagingUnavailableError: it cannot be reached, or has another owner.
        """

    def close(self) -> None:
        """Finish what was submitted, write behind, release everything."""

    def ensure_gateway(self, gateway: str) -> None:
        """Make a gateway with a new epoch; nothing when it exists."""

    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; the future ends once the commit is durable, with what `work` returned or raised.

        Work of one gateway runs in order of submission; several works may share one commit (group commit).
        A work may be run again from its start when nothing of it was kept: it changes nothing but its commit.

        Raises (in the future):
            NotFoundError: no such gateway.
            StagingUnavailableError: the commit did not happen, or nobody can tell; a repeat is safe.
        """

    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a consistent view; everything acknowledged before the call is in it."""

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` when a gateway has new visible arrivals, whichever process committed them.

        What it is told of is never ahead of what `read` shows. Calls may coalesce, may name more bucket keys than
        moved, and come from a thread of the store: a listener returns quickly and calls nothing of the store that
        waits. Commits between two losses of a connection are made good by a notice for every gateway.

        Returns:
            What ends the watching; a call under way may still arrive.
        """
