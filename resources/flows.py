"""Flows on executors, and those that lead into the lake, which go through the gateway as any push does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.base import DeltaQuery
from lakesync.adapters.flowing import PAGE, Flowed, FlowMark, Sieve, flow_to, going_over, new_deltas, replay_to
from lakesync.adapters.following import by_day
from lakesync.adapters.loads import Settled
from lakesync.adapters.places import Backend, Leaf, Place
from lakesync.adapters.progress import ProgressKept
from lakesync.config import Config
from lakesync.model.crash_points import crash_point
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, SyncPush
from lakesync.wire.json import encode_push
from resources.intake import Intake, open_intake
from resources.tasks import on_executors, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

PUSH = 1000
"""Deltas in one push into a gateway."""


class Flow(msgspec.Struct, frozen=True):
    """One leaf's part of a flow, as a task is told of it."""

    name: str
    """Of its mark."""
    source: Place
    leaf: Leaf
    sieve: Sieve
    schemas: tuple[TableSchema, ...] = ()
    again: tuple[int, int] | None = None
    """The arrivals that go over again, after what is new of them and of earlier ones; None: only what is new."""

    def run(self) -> Iterator[Flowed]:
        """Carry over what is new, and what goes over again."""
        with ExitStack() as closing:
            source, target, *cold = opened(
                [self.source, Backend(self.leaf.name, self.leaf.uri), *self.leaf.cold], closing
            )
            settled, until = Settled(source), self.again[1] if self.again else None
            yield from flow_to(settled, target, self.name, self.sieve, self.schemas, cold=cold, until=until)
            if self.again:
                yield from replay_to(settled, target, self.name, self.sieve, self.schemas, self.again, cold=cold)


def flow(spark: SparkSession, flows: Sequence[Flow]) -> list[list[Flowed]]:
    """Carry over what is new, and again what the flows say, each leaf in a task of its own.

    Returns:
        The pages of each leaf.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `flow_to`.
        LakeUnavailableError: Spark is gone.
    """
    return [list(pages) for pages in on_executors(spark, flows, Flowed)]


class LakeFlow(NamedTuple):
    """A flow into the lake, as a task is told of it."""

    source: Place
    sieve: Sieve
    into: str | None
    """The gateway that takes the deltas; None: the one that each is of."""
    config: Config
    """Tells the way into the gateways."""
    progress: Path
    """The file that keeps how far the flow is."""
    again: tuple[int, int] | None = None
    """As of `Flow`."""

    def run(self) -> Iterator[Flowed]:
        """Push what is new, page by page; rows that do not meet the filter do not go, however they did before."""
        kept = ProgressKept(self.progress, FlowMark)
        found = kept.read()
        at = found if found is not None and found.sieve == self.sieve else FlowMark(self.sieve)
        with ExitStack() as closing:
            (source,) = opened([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            settled, until = Settled(source), self.again[1] if self.again else None
            query = new_deltas(at, self.sieve, until=until)
            for looked_at, deltas, after in going_over(settled, query, at, self.sieve, lambda *_: set()):
                _push(intake, deltas, self.into)
                crash_point("flow.after_push")
                at = replace(at, position=after or at.position, deltas=at.deltas + len(deltas))
                kept.write(at)
                yield Flowed(looked_at, len(deltas), at, by_day(deltas))
            if self.again:
                low, high = self.again
                query = DeltaQuery(since=low - 1, until=high, tables=self.sieve.tables, limit=PAGE)
                for looked_at, deltas, _ in going_over(settled, query, at, self.sieve, lambda *_: set()):
                    _push(intake, deltas, self.into)
                    yield Flowed(looked_at, len(deltas), at, by_day(deltas), is_replay=True)


def flow_to_lake(spark: SparkSession, flow: LakeFlow) -> list[Flowed]:
    """Push what is new, and again what the flow says, into gateways, whose flushes carry it to the lake.

    A repeat changes nothing, as a gateway knows every delta by its id: progress that was lost costs time alone.

    Returns:
        The pages that were dealt with.

    Raises:
        AdapterError: the source cannot be reached.
        BackpressureError: a gateway holds too much that is not yet in the lake; a repeat goes on.
        LakeSyncError: a gateway refuses a delta.
        LakeUnavailableError: Spark is gone.
    """
    (pages,) = on_executors(spark, [flow], Flowed)
    return list(pages)


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> None:
    by_writer: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_writer.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), some in by_writer.items():
        for start in range(0, len(some), PUSH):
            intake.push(gateway, encode_push(SyncPush(client, tuple(some[start : start + PUSH]))))
