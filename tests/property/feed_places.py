"""The stores that the feed's histories are played over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lakesync.staging import open_store
from lakesync.staging.postgres import PostgresStore
from lakesync.staging.store import StagingStore
from tests.postgres_server import empty, postgres_server
from tests.property.feed_history import History
from tests.property.test_feed_conflicts import LetterHistory
from tests.property.test_full_disk import FullDiskHistory
from tests.property.test_sharded_oracle import ShardedHistory


class PostgresHistory(History):
    """A history over a database, emptied for each."""

    url = ""

    def __init__(self, folder: Path, skews: Sequence[int] = (0, 0, 0), rules: int = 0) -> None:
        empty(self.url)
        super().__init__(folder, skews, rules)

    def _store(self) -> StagingStore:
        return open_store(self.url, lambda: self.now + self.ahead)

    def _write_behind(self, store: StagingStore) -> None:
        """Postgres has everything written."""


@contextmanager
def histories_over(place: str) -> Iterator[type[History]]:
    """What plays histories of a kind, by its name in `scripts/soak --over`; for `postgres` a server runs meanwhile."""
    if place != "postgres":
        kinds = {"sqlite": History, "full-disk": FullDiskHistory, "sharded": ShardedHistory, "conflicts": LetterHistory}
        yield kinds[place]
        return
    with postgres_server() as server:
        PostgresHistory.url = server.uri
        store = PostgresStore(server.uri, lambda: 0)
        store.open()
        store.close()
        yield PostgresHistory
