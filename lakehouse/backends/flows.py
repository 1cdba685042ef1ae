"""Runs flows in Spark tasks: a flow copies deltas that meet a filter from one backend to another, or into the lake.

A backend is one or more adapters, each of which stores deltas at a database or an object store. A flow into the lake
pushes to gateways, whose flushes write the deltas. The assets of flows (`assets.flows`) call this module.
"""

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

DELTAS_PER_PUSH = 1000
"""Deltas in one push into a gateway, at most."""


class Flow(msgspec.Struct, frozen=True):
    """The Spark task of a flow that writes to one adapter."""

    name: str
    """Name of the mark that says how far the adapter is written."""
    source: Backend
    target: WriteTarget
    row_filter: RowFilter
    schemas: tuple[TableSchema, ...] = ()
    """Schemas of the target's destination tables, which have merged rows; empty to write deltas only."""
    again: tuple[int, int] | None = None
    """First and last arrival to copy again, after new deltas up to the last one; None to copy new deltas only."""

    def run(self) -> Iterator[FlowStep]:
        """Copy new deltas, then the range to copy again. Yield a step for each page.

        A `LoadBarrier` keeps the flow from reading a part of a load that is still in progress.
        """
        with ExitStack() as closing:
            source, target, *cold = open_backends(
                [self.source, SingleBackend(self.target.name, self.target.uri), *self.target.cold], closing
            )
            readable, until = LoadBarrier(source), self.again[1] if self.again else None
            yield from run_flow(readable, target, self.name, self.row_filter, self.schemas, cold=cold, until=until)
            if self.again:
                yield from replay_flow(
                    readable, target, self.name, self.row_filter, self.schemas, self.again, cold=cold
                )


def flow(spark: SparkSession, flows: Sequence[Flow]) -> list[list[FlowStep]]:
    """Run the flows of several adapters, each in its own task.

    Args:
        spark: an open Spark session.
        flows: a flow for each adapter that is written.

    Returns:
        The steps of each flow, one for each copied page, in the order of `flows`.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `run_flow`.
        LakeUnavailableError: Spark cannot be reached.
    """
    return on_executors(spark, flows, FlowStep)


class LakeFlow(NamedTuple):
    """The Spark task of a flow into the lake."""

    source: Backend
    row_filter: RowFilter
    into: str | None
    """The gateway to push to; None for the gateway that each delta came from."""
    config: Config
    """The project's configuration, with which the task connects to the gateways."""
    progress: Path
    """The file in which the flow's progress is stored."""
    again: tuple[int, int] | None = None
    """First and last arrival to push again, after new deltas up to the last one; None to push new deltas only."""

    def run(self) -> Iterator[FlowStep]:
        """Push new deltas page by page, then the range to copy again.

        A row that no longer matches the filter is not pushed, even if it matched before.
        """
        progress_file = ProgressInFile(self.progress, FlowProgress)
        stored = progress_file.read()
        at = stored if stored is not None and stored.row_filter == self.row_filter else FlowProgress(self.row_filter)
        with ExitStack() as closing:
            (source,) = open_backends([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            readable, until = LoadBarrier(source), self.again[1] if self.again else None
            query = new_deltas_query(at, self.row_filter, until=until)
            for scanned, deltas, after in filtered_pages(readable, query, at, self.row_filter, lambda *_: set()):
                _push(intake, deltas, self.into)
                crash_point("flow.after_push")
                at = replace(at, position=after or at.position, deltas=at.deltas + len(deltas))
                progress_file.write(at)
                yield FlowStep(scanned, len(deltas), at, count_by_day(deltas))
            if self.again:
                low, high = self.again
                query = DeltaQuery(since=low - 1, until=high, tables=self.row_filter.tables, limit=PAGE_DELTAS)
                for scanned, deltas, _ in filtered_pages(readable, query, at, self.row_filter, lambda *_: set()):
                    _push(intake, deltas, self.into)
                    yield FlowStep(scanned, len(deltas), at, count_by_day(deltas), is_replay=True)


def flow_to_lake(spark: SparkSession, flow: LakeFlow) -> list[FlowStep]:
    """Push new deltas, and the range to copy again, to gateways, whose flushes write them to the lake.

    A repeat changes nothing, because a gateway recognises a delta by its id. Lost progress costs only time.

    Args:
        spark: an open Spark session.
        flow: the flow.

    Returns:
        A step for each page that was read.

    Raises:
        AdapterError: the source cannot be reached.
        BackpressureError: a gateway has too many unflushed deltas; a retry continues.
        LakeSyncError: a gateway rejects a delta.
        LakeUnavailableError: Spark cannot be reached.
    """
    (pages,) = on_executors(spark, [flow], FlowStep)
    return pages


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> None:
    """Push deltas in the name of the clients that wrote them, to the gateway `into`, or if None to each one's own."""
    by_writer: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_writer.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), some in by_writer.items():
        for start in range(0, len(some), DELTAS_PER_PUSH):
            intake.push(gateway, encode_push(SyncPush(client, tuple(some[start : start + DELTAS_PER_PUSH]))))
