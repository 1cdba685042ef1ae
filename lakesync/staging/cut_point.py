"""Finds the point at which a gateway's checkpoint can be made: an arrival with whole pushes on either side.

The pipeline asks for a cut point, waits until the lake contains all deltas up to it, and makes the checkpoint there.
The arrival of the newest push is not enough. A change of rules moves rows at arrivals of its own, so a checkpoint below
them under the new rules would contain rows that the feed sends again. And each shard counts its own arrivals.
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
"""How far all shards may advance their arrivals ahead of the clock in order to meet: half a second."""

TRIES = 20
"""Attempts to bring all shards to one arrival."""


class CutPointStore(ABC):
    """The method of a store that returns its cut point."""

    @abstractmethod
    def submit(self, gateway: str, work: Callable[[Commit], T]) -> Future[T]:
        """Run `work` in a commit; see `StagingStore.submit`."""

    @abstractmethod
    def read(self, gateway: str, work: Callable[[View], T]) -> Future[T]:
        """Run `work` over a view; see `StagingStore.read`."""

    def cut_point(self, gateway: str) -> CutPoint:
        """Return the gateway's cut point: every push so far has an arrival up to it, every later push one above it."""
        return self.read(gateway, _held).result()


def common_cut_point(gateway: str, stores: Mapping[str, StagingStore]) -> CutPoint:
    """Return a common cut point of all shards; shards that are behind advance their arrivals to it.

    Args:
        gateway: the gateway's id.
        stores: shard to store, the default shard first.

    Raises:
        StagingUnavailableError: pushes arrived in between, `TRIES` times; a repeat may succeed.
    """
    held = {name: store.cut_point(gateway) for name, store in stores.items()}
    for _ in range(TRIES):
        arrivals = {each.arrival for each in held.values()}
        if len(arrivals) == 1:
            return _joined(gateway, held)
        first = next(iter(stores.values()))
        now = first.submit(gateway, lambda commit: commit.next_arrivals(1)[-1]).result()
        there = max(now, *arrivals) + LEAD
        held = {name: store.submit(gateway, _going_on_to(there)).result() for name, store in stores.items()}
    raise StagingUnavailableError(
        f"the {len(stores)} shards of gateway {gateway!r} did not meet at one arrival in {TRIES} tries, as pushes kept "
        "coming in between; ask again"
    )


def _held(view: ClientView) -> CutPoint:
    config, mark = view.config, view.reindexing()
    done = mark is not None and mark.done and mark.rules_version == config.rules_version
    rules_version = config.rules_version if done or config.rules_version == 0 else None
    return CutPoint(view.gateway, view.arrival, view.epoch, rules_version)


def _going_on_to(there: int) -> Callable[[Commit], CutPoint]:
    def go(commit: RowCommit) -> CutPoint:
        behind = (there - commit.arrival) // ARRIVAL_STEP
        if behind > 0:
            here = commit.next_arrivals(1)[-1]  # the current time
            commit.next_arrivals(max(0, there - here) // ARRIVAL_STEP)
        return _held(commit)

    return go


def _joined(gateway: str, held: Mapping[str, CutPoint]) -> CutPoint:
    default = next(iter(held.values()))
    indexed = all(each.rules_version is not None for each in held.values())
    return CutPoint(
        gateway,
        default.arrival,
        default.epoch,
        default.rules_version if indexed else None,
        {name: ShardCutPoint(each.epoch, each.rules_version or 0) for name, each in held.items()},
    )
