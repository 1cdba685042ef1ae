"""The re-index: updates the bucket keys of all rows after a change of sync rules, in short commits.

Each row is stored with the bucket keys by which the rules show it. `SyncGateway` creates one `Reindexer`. It starts it
after a change of rules, when the gateway is opened, and when a pull finds a re-index that is not done.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import structlog

from lakesync.engine.access import RulesCache
from lakesync.feed.reindex import reindex_some
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Reindex
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.push import RowCommit

_log = structlog.get_logger("gateway")


class Reindexer:
    """Updates the rows of one gateway. It continues where this or an earlier process stopped. Thread-safe."""

    def __init__(self, gateway_id: str, store: TransactionStore, rules: RulesCache, rows: int) -> None:
        """Create it; nothing runs yet.

        Args:
            gateway_id: the gateway's id.
            store: the staging store that contains the gateway.
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
        return self._store.submit(self._gateway_id, lambda commit: self._work(commit, last))

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

    def _work(self, commit: RowCommit, last: Reindex | None) -> Reindex:
        return reindex_some(commit, self._rules.index(commit.config), last, self._rows)
