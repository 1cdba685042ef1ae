"""Rebuilds a staging store from the lake: rows, entries, ids and the ledger, under a new epoch.

`lakesync staging rebuild` calls it. Deltas that were acknowledged and never reached the lake are lost; their ids are
unknown too, so clients that still have them can push them again. Since all client records are lost, every client counts
as seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from lakesync.engine.access import RulesCache
from lakesync.engine.engine import Engine
from lakesync.feed.apply import arrivals_of, move, own_bucket
from lakesync.feed.reindex import moves_of
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import start_of, wall_of
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, StoredConnector
from lakesync.rules.keys import BucketIndex
from lakesync.staging import open_store
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.records import GatewayConfig, Move, StoredRow
from lakesync.staging.replacement import replacement_stores
from lakesync.staging.restored_log import ReplacementStore, Restoring
from lakesync.staging.shards import ShardMap, shard_urls

MARGIN_MS = 60_000
"""How far above the clock, and above everything in the lake, arrivals continue: the lost store may have used later
ones."""

_DELTAS_A_COMMIT = 5_000


class LakePush(NamedTuple):
    """One push as the lake contains it."""

    arrival: int
    client_id: str
    deltas: list[RowDelta]
    """In the order of the push."""


class History(Protocol):
    """The parts of the lake from which staging is rebuilt."""

    def gateways(self) -> list[str]:
        """Return every gateway that the lake knows."""

    def config(self, gateway: str) -> GatewayConfig | None:
        """Return the newest schemas and rules in the lake; None if it has none."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return the newest registered connectors in the lake."""

    def pushes(self, gateway: str) -> Iterator[LakePush]:
        """Yield every push, in order of arrival."""


class Rebuilt(msgspec.Struct, frozen=True, rename="camel"):
    """What was rebuilt of one gateway."""

    gateway: str
    epoch: int
    pushes: int
    deltas: int
    newest: int
    """The highest arrival in the lake; 0 if there is none."""
    arrival: int
    """New arrivals are above this."""
    schemas: int
    rules: bool
    connectors: int = 0
    shard: str = MAIN_SHARD


def rebuild(
    url: str,
    wall: Callable[[], int],
    history: History,
    *,
    replace: bool = False,
    margin_ms: int = MARGIN_MS,
    on_progress: Callable[[str, int], object] = lambda _gateway, _deltas: None,
    shards: ShardMap | None = None,
    only: str | None = None,
) -> list[Rebuilt]:
    """Rebuild the store at `url`; at the end it is complete, or nothing has changed.

    Args:
        url: of the store, or of the default shard's.
        wall: returns the server's wall time in milliseconds since 1970.
        history: the lake.
        replace: whether an existing store is renamed.
        margin_ms: how far above the clock, and above everything in the lake, arrivals continue.
        on_progress: called with a gateway and its number of deltas so far.
        shards: if tables are sharded; each shard gets its tables, whatever shard they were in.
        only: the only shard to rebuild; the others stay.

    Returns:
        What was rebuilt, by gateway and shard.

    Raises:
        ConfigurationError: a store exists and `replace` is false, or `only` cannot be rebuilt alone.
        StagingUnavailableError: a store has an owner, or cannot be written.
    """

    def above(newest: int) -> int:
        """Where arrivals go on: the newest in the lake may be ahead of a clock that was put back since."""
        return start_of(max(wall(), wall_of(newest)) + margin_ms)

    urls = {MAIN_SHARD: url} if shards is None else _chosen(shard_urls(shards, url), only)
    home = shards.of if shards is not None else lambda _: MAIN_SHARD
    main = shards.default if shards is not None else MAIN_SHARD
    replayer = Engine(open_store("memory://", wall), wall)  # never opened: a fresh store has nothing to replay
    with closing(replayer), replacement_stores(urls, wall, replayer, replace=replace) as stores:
        return [
            made
            for gateway in history.gateways()
            for made in _rebuild_gateway(stores, main, home, gateway, history, above, on_progress)
        ]


def _chosen(urls: dict[str, str], only: str | None) -> dict[str, str]:
    if only is None:
        return urls
    if only not in urls:
        raise ConfigurationError(f"there is no shard {only!r}: {', '.join(urls)} are configured")
    within = [name for name, url in urls.items() if name != only and url.startswith(f"{urls[only].rstrip('/')}/")]
    if within:
        raise ConfigurationError(
            f"the folder of shard {only!r} holds that of {', '.join(within)}: make all of them again, without --shard"
        )
    return {only: urls[only]}


def _rebuild_gateway(
    stores: Mapping[str, ReplacementStore],
    main: str,
    home: Callable[[str], str],
    gateway: str,
    history: History,
    above: Callable[[int], int],
    on_progress: Callable[[str, int], object],
) -> list[Rebuilt]:
    config = history.config(gateway)
    for store in stores.values():
        store.ensure_gateway(gateway)
        if config is not None:
            store.run(gateway, lambda commit: commit.restore_config(config))
    connectors = history.connectors(gateway) if main in stores else []
    for connector in connectors:
        stores[main].run(gateway, partial(_put_connector, connector))
    rules = RulesCache()
    told = dict.fromkeys(stores, (0, 0, 0))
    for some in _chunks(history.pushes(gateway)):
        for name, own in _by_shard(some, home).items():
            if name not in stores:
                continue
            stores[name].run(gateway, lambda commit, own=own: _restore(commit, own, rules.index(commit.config)))  # type: ignore[misc]
            pushes, deltas, _ = told[name]
            told[name] = pushes + len(own), deltas + sum(len(push.deltas) for push in own), own[-1].arrival
        on_progress(gateway, sum(deltas for _, deltas, _ in told.values()))
    floor = above(max(newest for _, _, newest in told.values()))
    made = []
    for name, store in stores.items():
        store.run(gateway, lambda commit: commit.restore_end(floor))
        epoch, arrival = store.run(gateway, lambda commit: (commit.epoch, commit.arrival))
        pushes, deltas, newest = told[name]
        made.append(
            Rebuilt(
                gateway=gateway,
                epoch=epoch,
                pushes=pushes,
                deltas=deltas,
                newest=newest,
                arrival=arrival,
                schemas=len(config.schemas) if config else 0,
                rules=config is not None and config.rules is not None,
                connectors=len(connectors),
                shard=name,
            )
        )
    return made


def _put_connector(connector: StoredConnector, commit: Restoring) -> None:
    commit.put_connector(connector)


def _by_shard(pushes: Iterable[LakePush], home: Callable[[str], str]) -> dict[str, list[LakePush]]:
    """Return each shard's part of each push."""
    found: dict[str, list[LakePush]] = {}
    for push in pushes:
        parts: dict[str, list[RowDelta]] = {}
        for delta in push.deltas:
            parts.setdefault(home(delta.table), []).append(delta)
        for name, deltas in parts.items():
            found.setdefault(name, []).append(push._replace(deltas=deltas))
    return found


def _restore(commit: Restoring, pushes: list[LakePush], index: BucketIndex) -> None:
    """Store log rows and merged rows of some pushes, with their moves, so that DELETEs are known too."""
    stored = commit.rows({delta.key for push in pushes for delta in push.deltas})
    rows = {key: row.copy() for key, row in stored.items()}
    moves: list[Move] = []
    for push in pushes:
        commit.restore(push.client_id, push.deltas, push.arrival)
        for delta in push.deltas:
            rows.setdefault(delta.key, StoredRow(delta.key, arrival=0, state=RowState())).state.merge(delta)
        for key, arrival in arrivals_of(push.deltas, push.arrival).items():
            row = rows[key]
            row.arrival = row.writers_floor = arrival
            moves += moves_of(row, index)
            if not index.everything:  # a client that wrote to it may have it without seeing it
                moves.append(move(row, own_bucket(push.client_id), arrival, "own"))
    commit.put_rows(rows.values(), moves)


def _chunks(pushes: Iterable[LakePush]) -> Iterator[list[LakePush]]:
    some: list[LakePush] = []
    size = 0
    for push in pushes:
        some.append(push)
        size += len(push.deltas)
        if size >= _DELTAS_A_COMMIT:
            yield some
            some, size = [], 0
    if some:
        yield some
