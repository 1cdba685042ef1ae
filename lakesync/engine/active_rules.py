"""A gateway's active sync rules: what a client may see by them, and the update of all rows after they change.

A *gateway* is one app's stream of changes. The rules consist of buckets: tables with filters, which may compare a
column with a claim of the client's token. A *bucket key* is a bucket's name with values of the compared columns. Rows
are stored with their bucket keys, and a client's claims give it bucket keys: it may see the rows with one of its keys.

Every gateway has one `RulesCache`; pulls, pushes, subscriptions and explanations call `access` in their transaction.
After a change of the rules, a *re-index* gives all rows their new keys, in short commits. Every `SyncGateway` has one
`Reindexer` for this, and starts it after a change, when the gateway is opened, and when a pull finds a re-index that is
not done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import structlog

from lakesync.feed.client_state import current_record
from lakesync.feed.reindex import reindex_some
from lakesync.feed.row_buckets import keys_of
from lakesync.feed.scopes import Access
from lakesync.model.errors import StagingUnavailableError, ValidationError
from lakesync.model.types import Claims
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import SyncRules, all_rows_rules
from lakesync.staging.records import LOST, ClientRecord, GatewayConfig, Reindex, StoredRow
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import RowCommit

_log = structlog.get_logger("gateway")


class RulesCache:
    """Caches the bucket index of one gateway's active rules: the rules, compiled to compute bucket keys.

    The cache compares the rules and not only their version. If the transaction of a change is rolled back, the next
    change gets the same version.
    """

    def __init__(self) -> None:
        """Create it empty."""
        self._indexed: tuple[tuple[int, SyncRules | None], BucketIndex] | None = None
        """The rules' version, the rules, and their index."""
        self._reindexed: tuple[str, int, SyncRules | None] | None = None
        """A shard (a store with some of the tables), and version and rules by which all of its rows are known to have
        their bucket keys. The replays of all shards share a cache, and each shard has a re-index of its own."""

    def index(self, config: GatewayConfig) -> BucketIndex:
        """Return the bucket index of a configuration's rules; without rules, its keys show everyone every row."""
        indexed = self._indexed
        rules = (config.rules_version, config.rules)
        if indexed is None or indexed[0] != rules:
            indexed = (rules, BucketIndex(config.rules or all_rows_rules()))
            self._indexed = indexed
        return indexed[1]

    def access(self, view: ClientView, claims: Claims) -> Access:
        """Return what a client may see: its bucket keys and, while a re-index is running, a test of single rows.

        Args:
            view: a consistent read of the gateway's store.
            claims: the verified claims of the client's token.

        Raises:
            ValidationError: a claim that the rules read contains a lone surrogate. Tokens with such claims are rejected
                earlier, but an embedding app may pass any claims. They are stored when the commits of several requests
                end, so that all of these would fail.
        """
        config = view.config
        index = self.index(config)
        claims_read = index.claims_read(claims)
        try:
            msgspec.json.encode(claims_read)
        except UnicodeEncodeError as error:
            raise ValidationError(
                "a claim contains a lone surrogate, which is no Unicode text: leave it out"
            ) from error
        keys = index.client_keys(claims, view.buckets)
        sees_by_values = None if self.is_reindexed(view) else _row_test(index, claims)
        return Access(claims_read, keys, config.rules_version, sees_by_values)

    def record(self, view: ClientView, client_id: str, claims: Claims) -> ClientRecord | None:
        """Return a client's record for the store's epoch; None if it has none.

        Of a record that was erased or lost, only the bucket keys are known that the client's claims may see now.

        Args:
            view: a consistent read of the gateway's store.
            client_id: the client's id.
            claims: the verified claims of the client's token.
        """
        stored = view.client(client_id)
        is_lost = stored is not None and stored.epoch == LOST
        return current_record(stored, view, self.access(view, claims).keys if is_lost else ())

    def is_reindexed(self, view: ClientView) -> bool:
        """Return whether all rows are stored with the bucket keys of the active rules."""
        config = view.config
        rules = (view.shard, config.rules_version, config.rules)
        if config.rules_version == 0 or self._reindexed == rules:  # version 0: the gateway never had rules
            return True
        progress = view.reindexing()
        if progress is None or progress.rules_version != config.rules_version or not progress.done:
            return False
        self._reindexed = rules
        return True


class Reindexer:
    """Gives the rows of one gateway their new bucket keys. It continues where this or an earlier process stopped.

    Thread-safe.
    """

    def __init__(self, gateway_id: str, store: TransactionStore, rules: RulesCache, rows: int) -> None:
        """Create it; nothing runs yet.

        Args:
            gateway_id: the gateway's id.
            store: the staging store (the database that pushes are committed to) that contains the gateway.
            rules: the gateway's cache of compiled sync rules.
            rows: the number of rows that one commit reads and updates.
        """
        self._gateway_id = gateway_id
        self._store = store
        self._rules = rules
        self._rows = rows
        self._running = False
        self._lock = threading.Lock()

    def submit(self, last: Reindex | None = None) -> Future[Reindex]:
        """Update the next rows in one commit.

        Args:
            last: the result of the previous commit, after which this one continues; None continues after the position
                in the store.

        Returns:
            A future of the new position; its `done` says whether all rows are updated.
        """
        return self._store.submit(self._gateway_id, lambda commit: self._update_some(commit, last))

    def start(self, last: Reindex | None = None) -> None:
        """Update all rows in the background, unless this is in progress; errors are logged.

        Args:
            last: the result of the last `submit`; None continues after the position in the store.
        """
        with self._lock:
            if self._running:
                return
            self._running = True
        self.submit(last).add_done_callback(self._continue)

    def _continue(self, ended: Future[Reindex]) -> None:
        """Submit the next commit until all rows are updated; a callback of the last commit's future."""
        error = ended.exception()
        if error is None and not ended.result().done:
            self.submit(ended.result()).add_done_callback(self._continue)
            return
        with self._lock:
            self._running = False
        if error is not None and not isinstance(error, StagingUnavailableError):
            _log.error("re-index stopped, the next request starts it again", gateway=self._gateway_id, exc_info=error)

    def _update_some(self, commit: RowCommit, last: Reindex | None) -> Reindex:
        """Update the next rows by the rules that are active in this commit."""
        return reindex_some(commit, self._rules.index(commit.config), last, self._rows)


def _row_test(index: BucketIndex, claims: Claims) -> Callable[[StoredRow], bool]:
    """Return a function that returns whether the rules show a row to the claims, by the row's values.

    It ignores the stored bucket keys, which may be those of earlier rules while a re-index is running.
    """

    def sees(row: StoredRow) -> bool:
        keys = keys_of(row, index)
        if not keys:
            return False
        return not index.client_keys_among(claims, keys).isdisjoint(keys)

    return sees
