"""Rules that changed, carried through all rows in the background, one short commit after another."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import structlog

from lakesync.engine.access import RulesCache
from lakesync.feed.reindex import reindex_some
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Reindex
from lakesync.staging.store import Commit, StagingStore

_log = structlog.get_logger("gateway")


class Reindexer:
    """Goes on where it, or another process, or an earlier life of this one, left off. Safe between threads."""

    def __init__(self, gateway_id: str, store: StagingStore, rules: RulesCache, rows: int) -> None:
        """Args: rows: how many a commit brings in line."""
        self._gateway_id = gateway_id
        self._store = store
        self._rules = rules
        self._rows = rows
        self._running = False
        self._lock = threading.Lock()

    def submit(self, last: Reindex | None = None) -> Future[Reindex]:
        """Do the next rows; with what this returns for the last ones the next call does those behind them."""
        return self._store.submit(self._gateway_id, lambda commit: self._work(commit, last))

    def start(self, last: Reindex | None = None) -> None:
        """Go on in the background until all is done, unless that is under way."""
        with self._lock:
            if self._running:
                return
            self._running = True
        self.submit(last).add_done_callback(self._go_on)

    def _go_on(self, ended: Future[Reindex]) -> None:
        error = ended.exception()
        if error is None and not ended.result().done:
            self.submit(ended.result()).add_done_callback(self._go_on)
            return
        with self._lock:
            self._running = False
        if error is not None and not isinstance(error, StagingUnavailableError):
            _log.error("re-index stopped, the next request starts it again", gateway=self._gateway_id, exc_info=error)

    def _work(self, commit: Commit, last: Reindex | None) -> Reindex:
        return reindex_some(commit, self._rules.index(commit.config), last, self._rows)
