"""Flows on executors, and those that lead into the lake, which go through the gateway as any push does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.flowing import Flowed, FlowMark, Sieve, flow_to, going_over
from lakesync.adapters.loads import Settled
from lakesync.adapters.places import Backend, Leaf, Place
from lakesync.adapters.progress import ProgressKept
from lakesync.config import Config
from lakesync.crash import crash_point
from lakesync.schema import TableSchema
from lakesync.types import RowDelta, SyncPush
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

    def run(self) -> Iterator[Flowed]:
        """Carry over what is new."""
        with ExitStack() as closing:
            source, target, *cold = opened(
                [self.source, Backend(self.leaf.name, self.leaf.uri), *self.leaf.cold], closing
            )
            yield from flow_to(Settled(source), target, self.name, self.sieve, self.schemas, cold=cold)


def flow(spark: SparkSession, flows: Sequence[Flow]) -> list[Flowed]:
    """Carry over what is new, each leaf in a task of its own; what each did in all.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `flow_to`.
        LakeUnavailableError: Spark is gone.
    """
    return [_together(each.sieve, parts) for each, parts in zip(flows, on_executors(spark, flows, Flowed), strict=True)]


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

    def run(self) -> Iterator[Flowed]:
        """Push what is new, page by page; rows that do not meet the filter do not go, however they did before."""
        kept = ProgressKept(self.progress, FlowMark)
        found = kept.read()
        at = found if found is not None and found.sieve == self.sieve else FlowMark(self.sieve)
        with ExitStack() as closing:
            (source,) = opened([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            for looked_at, deltas, after in going_over(Settled(source), at, self.sieve, lambda *_: set()):
                _push(intake, deltas, self.into)
                crash_point("flow.after_push")
                at = replace(at, position=after or at.position, deltas=at.deltas + len(deltas))
                kept.write(at)
                yield Flowed(looked_at, len(deltas), at)


def flow_to_lake(spark: SparkSession, flow: LakeFlow) -> Flowed:
    """Push what is new into gateways, whose flushes carry it to the lake; what was done in all.

    A repeat changes nothing, as a gateway knows every delta by its id: progress that was lost costs time alone.

    Raises:
        AdapterError: the source cannot be reached.
        BackpressureError: a gateway holds too much that is not yet in the lake; a repeat goes on.
        LakeSyncError: a gateway refuses a delta.
        LakeUnavailableError: Spark is gone.
    """
    (parts,) = on_executors(spark, [flow], Flowed)
    return _together(flow.sieve, parts)


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> None:
    by_writer: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_writer.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), some in by_writer.items():
        for start in range(0, len(some), PUSH):
            intake.push(gateway, encode_push(SyncPush(client, tuple(some[start : start + PUSH]))))


def _together(sieve: Sieve, parts: Sequence[Flowed]) -> Flowed:
    mark = parts[-1].mark if parts else FlowMark(sieve)
    return Flowed(sum(part.looked_at for part in parts), sum(part.deltas for part in parts), mark)
