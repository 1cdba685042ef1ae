"""Finds the point at which a gateway's checkpoint can be made: an arrival with whole pushes on either side.

A *checkpoint* is a snapshot of all rows at one arrival, from which new clients start. A *gateway* is one app's stream
of changes. An *arrival* is its own timestamp of a commit: a hybrid logical clock with the wall milliseconds above its
lowest 16 bits. The pipeline requests a *cut point*, waits until the lake contains all deltas up to it, and makes the
checkpoint there.

The cut point of one store is its newest arrival of any kind, which may be above that of the newest push: a change of
the sync rules moves rows at arrivals of its own. If the cut point were below them, the feed would send these rows again
to a client that starts from the checkpoint. If tables are in several stores (shards), each store counts its own
arrivals. So all shards first advance to one arrival. An *epoch* identifies a store's copy of a gateway.

The method `cut_point` of the stores is the entry: `BaseStore` calls `cut_point_of`, and a sharded store calls
`common_cut_point`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import ARRIVAL_STEP, CutPoint, ShardCutPoint
from lakesync.staging.store import StagingStore
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.push import RowCommit

LEAD = 500 << 16
"""How far ahead of the clock the shards' common arrival is chosen at first, as a difference of arrivals: half a second.
The shards meet if all commit within this time, as no push then gets a later arrival before its shard has advanced."""

MAX_LEAD = 4000 << 16
"""The most that the lead grows to, with each attempt that failed: four seconds."""

MAX_ATTEMPTS = 20
"""The most attempts to bring all shards to one arrival."""


def cut_point_of(view: ClientView) -> CutPoint:
    """Return the cut point of one store, given a consistent read or a commit of the gateway.

    After a change of the rules, a *re-index* assigns all rows to the new rules in the background. Until it is done, the
    cut point's rules version is None, so that no checkpoint is made there. The version is 0 if the gateway has no
    rules.
    """
    config, reindex = view.config, view.reindexing()
    is_done = reindex is not None and reindex.done and reindex.rules_version == config.rules_version
    rules_version = config.rules_version if is_done or config.rules_version == 0 else None
    return CutPoint(view.gateway, view.arrival, view.epoch, rules_version)


def common_cut_point(gateway: str, stores: Mapping[str, StagingStore]) -> CutPoint:
    """Bring all shards to one arrival, and return this point.

    Args:
        gateway: the gateway's id.
        stores: the store of each shard, by shard name, the default shard first.

    Raises:
        StagingUnavailableError: a shard cannot be reached, or in each of `MAX_ATTEMPTS` attempts a shard took longer
            than the lead or had pushes beyond it; a repeat may succeed.
    """
    points = {name: store.cut_point(gateway) for name, store in stores.items()}
    default = next(iter(stores.values()))
    lead, attempts = LEAD, 0
    while len(arrivals := {point.arrival for point in points.values()}) > 1:
        if attempts == MAX_ATTEMPTS:
            raise StagingUnavailableError(
                f"the {len(stores)} shards of gateway {gateway!r} did not meet at one arrival in {MAX_ATTEMPTS} "
                "attempts, as pushes arrived in between: repeat the call"
            )
        now = default.submit(gateway, lambda commit: commit.next_arrivals(1)[-1]).result()  # the clock, as an arrival
        target = max(now, *arrivals) + lead
        advances = {name: store.submit(gateway, advance_to(target)) for name, store in stores.items()}
        points = {name: advance.result() for name, advance in advances.items()}
        lead, attempts = min(2 * lead, MAX_LEAD), attempts + 1
    return _joined(gateway, points)


def advance_to(target: int) -> Callable[[RowCommit], CutPoint]:
    """Return a function for `submit` that raises a store's arrival to at least `target` and returns its cut point.

    Every later push gets a greater arrival. Earlier ones have ended: a commit gets its arrival under the gateway's
    lock, which Postgres releases once readers see the commit.

    Args:
        target: an arrival.
    """

    def advance(commit: RowCommit) -> CutPoint:
        # Arrivals, and so the target, are multiples of `ARRIVAL_STEP`. Unused ones raise the newest one to the target.
        if commit.arrival < target:
            now = commit.next_arrivals(1)[-1]  # at least the wall time
            commit.next_arrivals(max(0, target - now) // ARRIVAL_STEP)
        return cut_point_of(commit)

    return advance


def _joined(gateway: str, points: Mapping[str, CutPoint]) -> CutPoint:
    """Join the cut points of all shards, which are at the same arrival.

    Args:
        gateway: the gateway's id.
        points: the cut point of each shard, by shard name, the default shard first.
    """
    default = next(iter(points.values()))
    are_indexed = all(point.rules_version is not None for point in points.values())
    return CutPoint(
        gateway,
        default.arrival,
        default.epoch,
        default.rules_version if are_indexed else None,
        # 0 instead of None is the lowest: while any shard is re-indexed, no checkpoint is made at the joined point
        {name: ShardCutPoint(point.epoch, point.rules_version or 0) for name, point in points.items()},
    )
