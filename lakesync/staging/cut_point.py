"""Finds the point at which a gateway's checkpoint can be made: an arrival with whole pushes on either side.

A *checkpoint* is a snapshot of all rows at one arrival, from which new clients start. An *arrival* is the gateway's own
timestamp of a commit (a hybrid logical clock). The pipeline requests a *cut point*, waits until the lake contains all
deltas up to it, and makes the checkpoint there.

The arrival of the newest push cannot be the cut point, for two reasons. A change of the sync rules moves rows at
arrivals of its own: the feed would send these rows again to a client that starts from a checkpoint below. And if tables
are in several stores (shards), each counts its own arrivals, so all shards must be brought to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import ARRIVAL_STEP, CutPoint, ShardCutPoint
from lakesync.staging.store import Commit, StagingStore, View
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import RowCommit

T = TypeVar("T")

LEAD = 500 << 16
"""How far ahead of the clock the shards' common arrival is chosen, as a difference of arrivals: half a second. Pushes
that arrive while shards advance to it then do not exceed it."""

MAX_ATTEMPTS = 20
"""The most attempts to bring all shards to one arrival."""


class CutPointStore(ABC):
    """The method of a store that returns its cut point; a base class of `SqliteStore` and `PostgresStore`."""

    @abstractmethod
    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; see `StagingStore.submit`."""

    @abstractmethod
    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a view; see `StagingStore.read`."""

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the gateway's cut point: every push so far has an arrival up to it, every later push one above it."""
        return self.read(gateway, _cut_point).result()


def common_cut_point(gateway: str, stores: Mapping[str, StagingStore]) -> CutPoint:
    """Return a common cut point of all shards; shards that are behind advance their arrivals to it.

    Args:
        gateway: the gateway's id.
        stores: the store of each shard, by shard name, the default shard first.

    Raises:
        StagingUnavailableError: in `MAX_ATTEMPTS` attempts, pushes always arrived in between, or a shard cannot be
            reached; a repeat may succeed.
    """
    points = {name: store.cut_point(gateway) for name, store in stores.items()}
    for _ in range(MAX_ATTEMPTS):
        arrivals = {point.arrival for point in points.values()}
        if len(arrivals) == 1:
            return _joined(gateway, points)
        first = next(iter(stores.values()))
        now = first.submit(gateway, lambda commit: commit.next_arrivals(1)[-1]).result()
        target = max(now, *arrivals) + LEAD
        points = {name: store.submit(gateway, _advance_to(target)).result() for name, store in stores.items()}
    raise StagingUnavailableError(
        f"the {len(stores)} shards of gateway {gateway!r} did not meet at one arrival in {MAX_ATTEMPTS} attempts, as "
        "pushes arrived in between: repeat the call"
    )


def _cut_point(view: ClientView) -> CutPoint:
    """Return the cut point of one store; without a rules version while its rows are re-indexed."""
    config, progress = view.config, view.reindexing()
    done = progress is not None and progress.done and progress.rules_version == config.rules_version
    rules_version = config.rules_version if done or config.rules_version == 0 else None
    return CutPoint(view.gateway, view.arrival, view.epoch, rules_version)


def _advance_to(target: int) -> Callable[[Commit], CutPoint]:
    """Return a function for `submit` that raises a store's arrival to at least `target` and returns its cut point."""

    def advance(commit: RowCommit) -> CutPoint:
        if (target - commit.arrival) // ARRIVAL_STEP > 0:
            now = commit.next_arrivals(1)[-1]  # the first new arrival is at least the wall time
            commit.next_arrivals(max(0, target - now) // ARRIVAL_STEP)  # unused arrivals raise the head to the target
        return _cut_point(commit)

    return advance


def _joined(gateway: str, points: Mapping[str, CutPoint]) -> CutPoint:
    """Join the cut points of all shards, which are at the same arrival. The default shard's is the first."""
    default = next(iter(points.values()))
    indexed = all(point.rules_version is not None for point in points.values())
    return CutPoint(
        gateway,
        default.arrival,
        default.epoch,
        default.rules_version if indexed else None,
        {name: ShardCutPoint(point.epoch, point.rules_version or 0) for name, point in points.items()},
    )
