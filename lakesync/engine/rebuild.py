"""Rebuilds a staging store from the lake: merged rows, feed entries, and the ids of all accepted deltas.

`lakesync staging rebuild` calls `rebuild` after the staging store (the database that pushes are committed to) was lost.
The lake's Iceberg table of all *deltas* (changes of rows) has what clients pushed, except for what was not flushed to
it yet. Such deltas are lost. Their ids are unknown too, so clients that still have them can push them again. What
clients were sent is not in the lake either. So any client may have any row, and has to start again with its next pull.
The new store has a new *epoch*, by which cursors and records from before are recognised.

A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit (a hybrid logical clock, HLC).
A *bucket key* names a bucket of the sync rules with the claims that may see it. A *feed entry* is a row's history under
one bucket key; a *move* is a change of an entry. A *shard* is a store with some of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.engine import Engine
from lakesync.feed.push_rows import arrivals_of
from lakesync.feed.row_buckets import change_keys, keys_of, own_move
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import start_of, wall_of
from lakesync.model.merge import RowState
from lakesync.model.parts import grouped
from lakesync.model.types import RowDelta, StoredConnector
from lakesync.staging import open_store
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.rebuild_commit import RebuildCommit, ReplacementStore
from lakesync.staging.records import ARRIVAL_STEP, GatewayConfig, Move, StoredRow
from lakesync.staging.shards import ShardMap, shard_urls
from lakesync.staging.store_urls import replacement_stores

MARGIN_MS = 60_000
"""Milliseconds by which new arrivals exceed the clock and all arrivals of the rebuilt shards in the lake.

The lost store may have used later ones. A shard that is rebuilt alone need not be above the others: arrivals of
different shards are not compared, and checkpoints and cursors from before are not valid in its new epoch."""

_DELTAS_A_COMMIT = 5_000
"""Deltas that one commit restores."""


class LakePush(NamedTuple):
    """One push as the lake contains it."""

    arrival: int
    """The gateway's own HLC timestamp of the push's commit."""
    client_id: str
    """The client that pushed."""
    deltas: list[RowDelta]
    """In the order of the push."""


class LakeHistory(Protocol):
    """The parts of the lake from which staging is rebuilt."""

    def gateways(self) -> list[str]:
        """Return the id of every gateway that has data in the lake."""

    def config(self, gateway: str) -> GatewayConfig | None:
        """Return the newest schemas and rules of a gateway in the lake; None if the lake has none."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the newest registered connectors of a gateway in the lake."""

    def pushes(self, gateway: str) -> Iterator[LakePush]:
        """Yield every push to a gateway, in order of arrival."""


class RebuildReport(msgspec.Struct, frozen=True, rename="camel"):
    """What was rebuilt of one gateway in one shard. `lakesync staging rebuild` prints it."""

    gateway: str
    epoch: int
    """The new epoch of the gateway in this store."""
    pushes: int
    """Number of restored pushes."""
    deltas: int
    """Number of restored deltas."""
    newest: int
    """The highest arrival in the lake; 0 if the lake is empty."""
    arrival: int
    """New arrivals are above this."""
    schemas: int
    """Number of registered schemas."""
    rules: bool
    """Whether the gateway has sync rules."""
    connectors: int = 0
    """Number of registered connectors, which are stored in the default shard."""
    shard: str = MAIN_SHARD


def rebuild(
    url: str,
    wall: Callable[[], int],
    history: LakeHistory,
    *,
    replace: bool = False,
    margin_ms: int = MARGIN_MS,
    on_progress: Callable[[str, int], object] = lambda _gateway, _deltas: None,
    shards: ShardMap | None = None,
    only: str | None = None,
) -> list[RebuildReport]:
    """Rebuild the store at `url`. If this fails, the existing store is unchanged.

    Args:
        url: the store's URL, as for `open_store`; with shards, that of the default shard.
        wall: returns the server's wall time in milliseconds since 1970.
        history: reads the lake; its exceptions are raised unchanged.
        replace: whether an existing store may be replaced; it is renamed and kept. Otherwise it is an error.
        margin_ms: milliseconds by which new arrivals exceed the clock and all arrivals in the lake.
        on_progress: called with a gateway's id and the number of its deltas restored so far.
        shards: which tables belong to which shard; each shard gets its tables, whatever shard they were in. None if one
            store has all tables.
        only: the name of the only shard to rebuild; the others stay. None rebuilds all.

    Returns:
        What was rebuilt, by gateway and shard.

    Raises:
        ConfigurationError: a store exists and `replace` is false, `only` is no shard, or it cannot be rebuilt alone.
        StagingUnavailableError: a process owns a store, or a store cannot be written.
    """

    def first_arrival(newest: int) -> int:
        """Return the arrival above which new ones begin, given the newest one in the lake.

        The newest one may be ahead of the clock, if the clock was set back since.
        """
        return start_of(max(wall(), wall_of(newest)) + margin_ms)

    shards = shards or ShardMap({}, MAIN_SHARD)
    urls = _selected_urls(shard_urls(shards, url), only)
    # opening a store needs a replayer, although a new store has no log to replay; this engine is never opened
    replayer = Engine(open_store("memory://", wall), wall)
    with closing(replayer), replacement_stores(urls, wall, replayer, replace=replace) as stores:
        return [
            rebuilt
            for gateway in history.gateways()
            for rebuilt in _rebuild_gateway(stores, shards, gateway, history, first_arrival, on_progress)
        ]


def _selected_urls(urls: dict[str, str], only: str | None) -> dict[str, str]:
    """Return the URL of each shard to rebuild; None in `only` selects all.

    Args:
        urls: the URL of every shard's store, by shard name.
        only: the name of the only shard to rebuild; None for all.

    Raises:
        ConfigurationError: there is no such shard, or its folder contains another shard's.
    """
    if only is None:
        return urls
    if only not in urls:
        raise ConfigurationError(f"there is no shard {only!r}: choose one of {', '.join(urls)}")
    within = [name for name, url in urls.items() if name != only and url.startswith(f"{urls[only].rstrip('/')}/")]
    if within:
        raise ConfigurationError(
            f"the folder of shard {only!r} contains that of {', '.join(within)}: rebuild all of them, without --shard"
        )
    return {only: urls[only]}


def _rebuild_gateway(
    stores: Mapping[str, ReplacementStore],
    shards: ShardMap,
    gateway: str,
    history: LakeHistory,
    first_arrival: Callable[[int], int],
    on_progress: Callable[[str, int], object],
) -> list[RebuildReport]:
    """Restore one gateway in all stores: first its configuration, then its pushes, then the counters of its stores.

    Args:
        stores: the new store of each shard that is rebuilt, by shard name.
        shards: the shard of each table, and the default shard, which has the connectors.
        gateway: the gateway's id.
        history: reads the lake.
        first_arrival: returns the arrival above which new ones begin, given the newest restored one.
        on_progress: called with the gateway's id and the number of its deltas restored so far.
    """
    config = history.config(gateway)
    for store in stores.values():
        store.ensure_gateway(gateway)
        if config is not None:
            store.run(gateway, lambda commit: commit.restore_config(config))
    connectors = history.connectors(gateway) if shards.default in stores else []
    if connectors:
        stores[shards.default].run(gateway, lambda commit: _put_connectors(commit, connectors))
    restored = {name: _Restored() for name in stores}
    rules = RulesCache()
    for chunk in grouped(history.pushes(gateway), lambda push: len(push.deltas), _DELTAS_A_COMMIT):
        for name, own in _by_shard(chunk, shards).items():
            if name in stores:
                feed_end = stores[name].run(gateway, partial(_restore, own, rules, restored[name].feed_end))
                restored[name].add(own, feed_end)
        on_progress(gateway, sum(each.deltas for each in restored.values()))
    # new arrivals begin above `floor`, in every shard
    newest = max(each.newest for each in restored.values())
    floor = max(first_arrival(newest), *(each.feed_end for each in restored.values()))
    reports = []
    for name, store in stores.items():
        store.run(gateway, lambda commit: commit.finish_rebuild(floor))
        epoch, arrival = store.run(gateway, lambda commit: (commit.epoch, commit.arrival))
        reports.append(
            RebuildReport(
                gateway=gateway,
                epoch=epoch,
                pushes=restored[name].pushes,
                deltas=restored[name].deltas,
                newest=restored[name].newest,
                arrival=arrival,
                schemas=len(config.schemas) if config else 0,
                rules=config is not None and config.rules is not None,
                connectors=len(connectors) if name == shards.default else 0,
                shard=name,
            )
        )
    return reports


@dataclass
class _Restored:
    """The pushes that one shard has so far."""

    pushes: int = 0
    deltas: int = 0
    newest: int = 0
    """Arrival of the last push."""
    feed_end: int = 0
    """The highest arrival of a row."""

    def add(self, pushes: Sequence[LakePush], feed_end: int) -> None:
        """Count further pushes, after which the feed ends at `feed_end`."""
        self.pushes += len(pushes)
        self.deltas += sum(len(push.deltas) for push in pushes)
        self.newest, self.feed_end = pushes[-1].arrival, feed_end


def _put_connectors(commit: RebuildCommit, connectors: Iterable[StoredConnector]) -> None:
    """Store connectors."""
    for connector in connectors:
        commit.put_connector(connector)


def _by_shard(pushes: Iterable[LakePush], shards: ShardMap) -> dict[str, list[LakePush]]:
    """Return each shard's part of each push, by shard name."""
    by_shard: dict[str, list[LakePush]] = {}
    for push in pushes:
        for name, deltas in shards.divide(push.deltas).items():
            by_shard.setdefault(name, []).append(push._replace(deltas=deltas))
    return by_shard


def _restore(pushes: list[LakePush], rules: RulesCache, feed_end: int, commit: RebuildCommit) -> int:
    """Store the delta ids and merged rows of some pushes, with every move of a row into or out of a bucket.

    The moves show later which rows have left a bucket, so that clients that still have them are sent a DELETE.

    The restored log keeps the arrivals of the lake. Each merged row needs an arrival of its own: between two rows with
    the same arrival, a page could end and the second row be skipped. Pushes to different shards may have the same
    arrivals, so rows get later ones where needed.

    Args:
        pushes: the pushes, in order of arrival.
        rules: the cache of compiled sync rules.
        feed_end: the highest arrival of any row so far.
        commit: the open transaction in the store that is rebuilt.

    Returns:
        The highest arrival of a row.
    """
    index = rules.index(commit.config)
    stored = commit.rows({delta.key for push in pushes for delta in push.deltas})
    rows = {key: row.copy() for key, row in stored.items()}
    moves: list[Move] = []
    for push in pushes:
        commit.restore_push(push.client_id, push.deltas, push.arrival)
        for delta in push.deltas:
            rows.setdefault(delta.key, StoredRow(delta.key, arrival=0, state=RowState())).state.merge(delta)
        for key, arrival in arrivals_of(push.deltas, push.arrival).items():
            row, feed_end = rows[key], max(arrival, feed_end + ARRIVAL_STEP)
            row.arrival = row.writers_floor = feed_end  # any client may have written to the row up to here
            moves += change_keys(row, keys_of(row, index), feed_end)
            if not index.shows_all_rows:  # a client that wrote to it may have it without seeing it
                moves.append(own_move(row, push.client_id, feed_end))
    commit.put_rows(rows.values(), moves)
    return feed_end
