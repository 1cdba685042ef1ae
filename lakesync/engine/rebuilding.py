"""A staging store made again from the lake: rows, entries, ids and the ledger, under a new epoch.

What was acknowledged and never reached the lake is not in it: the ids of such deltas are not known either, so whoever
still has them may push them again. Every client that comes back is one that was seen before, since the records of all
are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from lakesync.engine.access import RulesCache
from lakesync.engine.engine import Engine
from lakesync.feed.apply import arrivals_of
from lakesync.feed.settle import moves_of
from lakesync.hlc import start_of
from lakesync.lww import RowState
from lakesync.rules.keys import BucketIndex
from lakesync.staging import open_store
from lakesync.staging.fresh import FreshStore, fresh_store
from lakesync.staging.records import GatewayConfig, Move, StoredRow
from lakesync.staging.restored_log import Restoring
from lakesync.types import RowDelta

MARGIN_MS = 60_000
"""How far above the clock arrivals go on: one that was handed out just before the store was lost lies below."""

_DELTAS_A_COMMIT = 5_000


class LakePush(NamedTuple):
    """One push as the lake holds it."""

    arrival: int
    client_id: str
    deltas: list[RowDelta]
    """In the order that they had in the push."""


class History(Protocol):
    """The lake, as far as staging can be made again from it."""

    def gateways(self) -> list[str]:
        """Every gateway of which the lake has anything."""

    def config(self, gateway: str) -> GatewayConfig | None:
        """The newest schemas and rules that the lake was told; None where it was told of none."""

    def pushes(self, gateway: str) -> Iterator[LakePush]:
        """Every push, in order of arrival."""


class Rebuilt(msgspec.Struct, frozen=True, rename="camel"):
    """What was brought back of one gateway."""

    gateway: str
    epoch: int
    pushes: int
    deltas: int
    newest: int
    """The highest arrival in the lake; 0 where there is none."""
    arrival: int
    """Those handed out from here on are above it."""
    schemas: int
    rules: bool


def rebuild(
    url: str,
    wall: Callable[[], int],
    history: History,
    *,
    replace: bool = False,
    margin_ms: int = MARGIN_MS,
    on_progress: Callable[[str, int], object] = lambda _gateway, _deltas: None,
) -> list[Rebuilt]:
    """Make the store at `url` again; it is there whole at the end, or nothing has changed.

    Args:
        replace: a store that is there already is set aside.
        on_progress: called with a gateway and the number of its deltas so far.

    Raises:
        ConfigurationError: there is a store already and `replace` is not set.
        StagingUnavailableError: the store has an owner, or cannot be written.
    """
    replayer = Engine(open_store(url, wall), wall)  # never opened: a fresh store has nothing to replay
    with fresh_store(url, wall, replayer, replace=replace) as store:
        return [
            _rebuild_gateway(store, gateway, history, start_of(wall() + margin_ms), on_progress)
            for gateway in history.gateways()
        ]


def _rebuild_gateway(
    store: FreshStore, gateway: str, history: History, floor: int, on_progress: Callable[[str, int], object]
) -> Rebuilt:
    store.ensure_gateway(gateway)
    config = history.config(gateway)
    if config is not None:
        store.run(gateway, lambda commit: commit.restore_config(config))
    rules = RulesCache()
    pushes = deltas = newest = 0
    for some in _chunks(history.pushes(gateway)):
        store.run(gateway, lambda commit, some=some: _restore(commit, some, rules.index(commit.config)))  # type: ignore[misc]
        pushes += len(some)
        deltas += sum(len(push.deltas) for push in some)
        newest = some[-1].arrival
        on_progress(gateway, deltas)
    store.run(gateway, lambda commit: commit.restore_end(floor))
    epoch, arrival = store.run(gateway, lambda commit: (commit.epoch, commit.arrival))
    return Rebuilt(
        gateway=gateway,
        epoch=epoch,
        pushes=pushes,
        deltas=deltas,
        newest=newest,
        arrival=arrival,
        schemas=len(config.schemas) if config else 0,
        rules=config is not None and config.rules is not None,
    )


def _restore(commit: Restoring, pushes: list[LakePush], index: BucketIndex) -> None:
    """Log rows and merged rows of a few pushes, with the moves of each, so that deletions are remembered too."""
    stored = commit.rows({delta.key for push in pushes for delta in push.deltas})
    rows = {key: row.copy() for key, row in stored.items()}
    moves: list[Move] = []
    for push in pushes:
        commit.restore(push.client_id, push.deltas, push.arrival)
        for delta in push.deltas:
            rows.setdefault(delta.key, StoredRow(*delta.key, arrival=0, state=RowState())).state.merge(delta)
        for key, arrival in arrivals_of(push.deltas, push.arrival).items():
            row = rows[key]
            row.arrival = row.writers_floor = arrival
            moves += moves_of(row, index)
    commit.put_rows(rows.values())
    commit.put_moves(moves)


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
