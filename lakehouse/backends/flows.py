"""Flows on executors, and those that lead into the lake, which go through the gateway as any push does."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import on_executors, open_backends
from lakehouse.landing.gateway_intake import Intake, open_intake
from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.backend_config import Backend, SingleBackend, WriteTarget
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.flows import (
    PAGE_DELTAS,
    FlowProgress,
    FlowStep,
    RowFilter,
    filtered_pages,
    new_deltas_query,
    replay_flow,
    run_flow,
)
from lakesync.adapters.transfer.follower import count_by_day
from lakesync.adapters.transfer.loads import LoadBarrier
from lakesync.adapters.transfer.progress import ProgressInFile
from lakesync.config import Config
from lakesync.model.crash_points import crash_point
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, SyncPush
from lakesync.wire.json import encode_push

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
    source: Backend
    leaf: WriteTarget
    row_filter: RowFilter
    schemas: tuple[TableSchema, ...] = ()
    again: tuple[int, int] | None = None
    """The arrivals that go over again, after what is new of them and of earlier ones; None: only what is new."""

    def run(self) -> Iterator[FlowStep]:
        """Carry over what is new, and what goes over again."""
        with ExitStack() as closing:
            source, target, *cold = open_backends(
                [self.source, SingleBackend(self.leaf.name, self.leaf.uri), *self.leaf.cold], closing
            )
            settled, until = LoadBarrier(source), self.again[1] if self.again else None
            yield from run_flow(settled, target, self.name, self.row_filter, self.schemas, cold=cold, until=until)
            if self.again:
                yield from replay_flow(settled, target, self.name, self.row_filter, self.schemas, self.again, cold=cold)


def flow(spark: SparkSession, flows: Sequence[Flow]) -> list[list[FlowStep]]:
    """Carry over what is new, and again what the flows say, each leaf in a task of its own.

    Args:
        spark: a session.
        flows: one for each leaf.

    Returns:
        The pages of each leaf.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `run_flow`.
        LakeUnavailableError: Spark is gone.
    """
    return on_executors(spark, flows, FlowStep)


class LakeFlow(NamedTuple):
    """A flow into the lake, as a task is told of it."""

    source: Backend
    row_filter: RowFilter
    into: str | None
    """The gateway that takes the deltas; None: the one that each is of."""
    config: Config
    """Tells the way into the gateways."""
    progress: Path
    """The file that keeps how far the flow is."""
    again: tuple[int, int] | None = None
    """As of `Flow`."""

    def run(self) -> Iterator[FlowStep]:
        """Push what is new, page by page; rows that do not meet the filter do not go, however they did before."""
        kept = ProgressInFile(self.progress, FlowProgress)
        found = kept.read()
        at = found if found is not None and found.row_filter == self.row_filter else FlowProgress(self.row_filter)
        with ExitStack() as closing:
            (source,) = open_backends([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            settled, until = LoadBarrier(source), self.again[1] if self.again else None
            query = new_deltas_query(at, self.row_filter, until=until)
            for scanned, deltas, after in filtered_pages(settled, query, at, self.row_filter, lambda *_: set()):
                _push(intake, deltas, self.into)
                crash_point("flow.after_push")
                at = replace(at, position=after or at.position, deltas=at.deltas + len(deltas))
                kept.write(at)
                yield FlowStep(scanned, len(deltas), at, count_by_day(deltas))
            if self.again:
                low, high = self.again
                query = DeltaQuery(since=low - 1, until=high, tables=self.row_filter.tables, limit=PAGE_DELTAS)
                for scanned, deltas, _ in filtered_pages(settled, query, at, self.row_filter, lambda *_: set()):
                    _push(intake, deltas, self.into)
                    yield FlowStep(scanned, len(deltas), at, count_by_day(deltas), is_replay=True)


def flow_to_lake(spark: SparkSession, flow: LakeFlow) -> list[FlowStep]:
    """Push what is new, and again what the flow says, into gateways, whose flushes carry it to the lake.

    A repeat changes nothing, as a gateway knows every delta by its id: progress that was lost costs time alone.

    Args:
        spark: a session.
        flow: the flow.

    Returns:
        The pages that were dealt with.

    Raises:
        AdapterError: the source cannot be reached.
        BackpressureError: a gateway holds too much that is not yet in the lake; a repeat goes on.
        LakeSyncError: a gateway refuses a delta.
        LakeUnavailableError: Spark is gone.
    """
    (pages,) = on_executors(spark, [flow], FlowStep)
    return pages


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> None:
    by_writer: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_writer.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), some in by_writer.items():
        for start in range(0, len(some), PUSH):
            intake.push(gateway, encode_push(SyncPush(client, tuple(some[start : start + PUSH]))))
