"""Copies deltas by flows in Spark tasks: from one backend to another, or into the lake.

A backend is one or more adapters, each of which stores deltas (changes of rows) at a database or an object store. A
gateway is one app's stream of deltas. A flow copies the deltas that meet a filter. A flow into the lake pushes them to
gateways, whose flushes write them. A *mark* is the stored progress of a flow. The driver receives only counts and
errors. The assets of flows (`assets.transfers`) call this module; `lakesync.adapters.transfer.flows` copies the pages.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import on_executors, open_backends
from lakehouse.gateway_connections import MAX_REQUEST_BYTES, Intake, is_rebuilt, open_intake
from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.backend_config import Backend, SingleBackend, WriteTarget
from lakesync.adapters.base import SuspendsTables
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.flow_pages import FlowProgress, RowFilter, filtered_pages, new_pages, written_by
from lakesync.adapters.transfer.flows import FlowStep, replay_flow, run_flow
from lakesync.adapters.transfer.follower import count_by_day
from lakesync.adapters.transfer.loads import LoadBarrier
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark, require_marks
from lakesync.config import Config
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import RejectedError, Rejection
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
    replay_range: tuple[int, int] | None = None
    """A range of arrivals (the gateways' timestamps of commits, in whose order a flow copies) that a backfill copies
    again, after new deltas up to its end: first and last arrival. None to copy new deltas only."""
    followers: tuple[str, ...] = ()
    """Names of the destinations' marks at the source. The flow compares them, to find the deltas that a destination
    has written late: behind the arrival up to which the flow has read."""
    flows: tuple[str, ...] = ()
    """Names of the marks of other flows at the source, for the same purpose."""

    def run(self) -> Iterator[FlowStep]:
        """Copy new deltas, then the range to copy again. Yield a step for each page, and one with suspended tables.

        The source may be a destination that tasks are filling in parallel (a load). A `LoadBarrier` keeps the flow from
        reading deltas before the load is complete.
        """
        with ExitStack() as closing:
            source, target, *cold = open_backends(
                [self.source, SingleBackend(self.target.name, self.target.uri), *self.target.cold], closing
            )
            readable, until = LoadBarrier(source), self.replay_range[1] if self.replay_range else None
            read_written = partial(written_by, source, self.followers, self.flows)
            yield from run_flow(
                readable,
                target,
                self.name,
                self.row_filter,
                self.schemas,
                cold=cold,
                until=until,
                read_written=read_written,
            )
            if self.replay_range:
                yield from replay_flow(
                    readable,
                    target,
                    self.name,
                    self.row_filter,
                    self.schemas,
                    self.replay_range,
                    cold=cold,
                    read_written=read_written,
                )
            suspended = target.suspended_tables(self.name) if isinstance(target, SuspendsTables) else []
            if suspended:
                progress = ProgressInMark(require_marks(target), self.name, FlowProgress).read()
                tables = tuple(each.table for each in suspended)
                yield FlowStep(0, 0, progress or FlowProgress(self.row_filter), suspended=tables)


class LakeFlow(NamedTuple):
    """The Spark task of a flow into the lake."""

    source: Backend
    row_filter: RowFilter
    into: str | None
    """The gateway to push to; None for the gateway that each delta came from."""
    config: Config
    """The project's configuration, with which the task connects to the gateways."""
    progress_path: Path
    """The file in which the flow's progress is stored."""
    epochs: dict[str, int]
    """The epochs of the staging store, as `store_epochs` returns them."""
    replay_range: tuple[int, int] | None = None
    """A range of arrivals (the gateways' timestamps of commits) that a backfill pushes again, after new deltas up to
    its end: first and last arrival. None to push new deltas only."""
    followers: tuple[str, ...] = ()
    """As `Flow.followers`."""
    flows: tuple[str, ...] = ()
    """As `Flow.flows`."""

    def run(self) -> Iterator[FlowStep]:
        """Push new deltas page by page, then the range to copy again. Yield a step for each page.

        A row that no longer matches the filter is not pushed, even if it matched before.
        """
        progress_file = ProgressInFile(self.progress_path, FlowProgress)
        progress = progress_file.read()
        if progress is None or progress.row_filter != self.row_filter or is_rebuilt(progress.epochs, self.epochs):
            progress = FlowProgress(self.row_filter)
        progress = replace(progress, epochs=self.epochs)
        with ExitStack() as closing:
            (source,) = open_backends([self.source], closing)
            intake = closing.enter_context(open_intake(self.config))
            readable, until = LoadBarrier(source), self.replay_range[1] if self.replay_range else None
            read_written = partial(written_by, source, self.followers, self.flows)
            pages = new_pages(
                readable, progress, self.row_filter, _no_stored_rows, until=until, read_written=read_written
            )
            for page in pages:
                copied, rejected = _push(intake, page.deltas, self.into)
                crash_point("flow.after_push")  # tests kill the process here
                progress = replace(page.progress, deltas=progress.deltas + len(copied))
                progress_file.write(progress)
                if page.scanned:
                    yield FlowStep(page.scanned, len(copied), progress, count_by_day(copied), rejected=rejected)
            if self.replay_range:
                first, last = self.replay_range
                before = read_written()
                query = DeltaQuery(since=first - 1, until=last, tables=self.row_filter.tables)
                for again in filtered_pages(readable, query, progress, self.row_filter, _no_stored_rows):
                    copied, rejected = _push(intake, again.deltas, self.into)
                    days = count_by_day(copied)
                    yield FlowStep(again.scanned, len(copied), progress, days, is_replay=True, rejected=rejected)
                before.require_no_load_until(read_written())


def flow(spark: SparkSession, flows: Sequence[Flow | LakeFlow]) -> list[list[FlowStep]]:
    """Run the tasks of a flow. Tasks of `LakeFlow` push to gateways, whose flushes write the deltas to the lake.

    A repeat of such a push changes nothing, because a gateway recognises a delta by its id. Lost progress costs only
    time.

    Args:
        spark: an open Spark session.
        flows: a task for each adapter that is written, or one for the lake.

    Returns:
        The steps of each task, one for each page that was read, in the order of `flows`.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `run_flow`.
        BackpressureError: a gateway has too many unflushed deltas; a retry continues.
        LakeSyncError: a gateway rejects a push as a whole.
        LakeUnavailableError: Spark cannot be reached.
    """
    return on_executors(spark, flows, FlowStep)


def _no_stored_rows(*_: object) -> set[str]:
    """Return no row ids, where `filtered_pages` asks which rows the target has: a flow into the lake does not look."""
    return set()


def _push(intake: Intake, deltas: pa.Table, into: str | None) -> tuple[pa.Table, tuple[Rejection, ...]]:
    """Push deltas as the clients that wrote them, to the gateway `into`; with None, to the gateway of each delta.

    Returns:
        The pushed deltas, and those that a gateway rejects.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rejected: list[Rejection] = []
    by_gateway_and_client: dict[tuple[str, str], list[RowDelta]] = {}
    for each in from_arrow(deltas):
        by_gateway_and_client.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
    for (gateway, client), pushed in by_gateway_and_client.items():
        for start in range(0, len(pushed), DELTAS_PER_PUSH):
            rejected += _push_accepted(intake, gateway, client, pushed[start : start + DELTAS_PER_PUSH])
    rejected_ids = pa.array([each.delta_id for each in rejected], pa.string())
    is_rejected = pc.is_in(deltas.column("delta_id").cast(pa.string()), rejected_ids)
    return deltas.filter(pc.invert(is_rejected)), tuple(rejected)


def _push_accepted(intake: Intake, gateway: str, client: str, deltas: list[RowDelta]) -> Iterator[Rejection]:
    """Push a client's deltas without those that the gateway rejects, and yield these. A large push is divided.

    Raises:
        RejectedError: the gateway rejects the push as a whole.
    """
    while deltas:
        body = encode_push(SyncPush(client, tuple(deltas)))
        if len(body) > MAX_REQUEST_BYTES and len(deltas) > 1:
            half = len(deltas) // 2
            yield from _push_accepted(intake, gateway, client, deltas[:half])
            yield from _push_accepted(intake, gateway, client, deltas[half:])
            return
        try:
            return intake.push(gateway, body)
        except RejectedError as error:
            rejected_ids = {each.delta_id for each in error.rejected}
            accepted = [each for each in deltas if each.delta_id not in rejected_ids]
            if len(accepted) == len(deltas):
                raise
            yield from error.rejected
            deltas = accepted
