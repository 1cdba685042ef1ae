"""The stores over which the feed's histories are played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakesync.staging.postgres import PostgresStore
from tests.postgres_server import postgres_server
from tests.property.feed_full_shards import FullShardsHistory
from tests.property.feed_history import History
from tests.property.feed_postgres import LostCommitsHistory, PostgresHistory, ProcessesHistory
from tests.property.test_feed_conflicts import LetterHistory
from tests.property.test_full_disk import FullDiskHistory
from tests.property.test_rebuilt_oracle import RebuiltHistory
from tests.property.test_sharded_oracle import ShardedHistory


@contextmanager
def histories_over(place: str) -> Iterator[type[History]]:
    """Yield a function that plays histories over a store of `scripts/soak --over`; starts Postgres if needed."""
    over_postgres = {"postgres": PostgresHistory, "processes": ProcessesHistory, "lost-commits": LostCommitsHistory}
    if place not in over_postgres:
        kinds = {
            "sqlite": History,
            "full-disk": FullDiskHistory,
            "sharded": ShardedHistory,
            "full-shards": FullShardsHistory,
            "conflicts": LetterHistory,
            "rebuilt": RebuiltHistory,
        }
        yield kinds[place]
        return
    with postgres_server() as server:
        PostgresHistory.url = server.uri
        store = PostgresStore(server.uri, lambda: 0)
        store.open()
        store.close()
        yield over_postgres[place]
