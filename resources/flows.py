"""Flows on executors, and those that lead into the lake, which go through the gateway as any push does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from lakesync.adapters.arrow import from_arrow
from lakesync.adapters.flowing import Flowed, FlowMark, Sieve, flow_to, going_over
from lakesync.adapters.places import Backend, Leaf, Place, open_place
from lakesync.schema import TableSchema
from lakesync.types import RowDelta, SyncPush
from lakesync.wire.json import encode_push
from resources.tasks import on_executors, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from resources.intake import Intake

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
            source, target = opened([self.source, Backend(self.leaf.name, self.leaf.uri)], closing)
            yield from flow_to(source, target, self.name, self.sieve, self.schemas)


def flow(spark: SparkSession, flows: Sequence[Flow]) -> list[Flowed]:
    """Carry over what is new, each leaf in a task of its own; what each did in all.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `flow_to`.
        LakeUnavailableError: Spark is gone.
    """
    return [_together(each.sieve, parts) for each, parts in zip(flows, on_executors(spark, flows, Flowed), strict=True)]


def flow_to_lake(source: Place, sieve: Sieve, intake: Intake, into: str | None, progress: Path) -> Flowed:
    """Push what is new into gateways, whose flushes carry it to the lake; page by page.

    A repeat changes nothing, as a gateway knows every delta by its id: progress that was lost costs time alone.

    Args:
        source: where from.
        sieve: what goes over; rows that do not meet its filter do not go, however they did before.
        intake: the way into the gateways.
        into: the gateway that takes the deltas; None: the one that each is of.
        progress: the file that keeps how far the flow is.

    Raises:
        AdapterError: the source cannot be reached.
        BackpressureError: a gateway holds too much that is not yet in the lake; a repeat goes on.
        LakeSyncError: a gateway refuses a delta.
    """
    at = _progress(progress, sieve)
    done = Flowed(0, 0, at)
    adapter = open_place(source)
    try:
        for looked_at, deltas, after in going_over(adapter, at, sieve, lambda _table, _rows: set()):
            stored = from_arrow(deltas)
            by_writer: dict[tuple[str, str], list[RowDelta]] = {}
            for each in stored:
                by_writer.setdefault((into or each.gateway, each.delta.client_id), []).append(each.delta)
            for (gateway, client), some in by_writer.items():
                for start in range(0, len(some), PUSH):
                    intake.push(gateway, encode_push(SyncPush(client, tuple(some[start : start + PUSH]))))
            at = FlowMark(sieve, after or at.position, at.deltas + len(stored))
            _keep(progress, at)
            done = Flowed(done.looked_at + looked_at, done.deltas + len(stored), at)
    finally:
        adapter.close()
    return done


def _together(sieve: Sieve, parts: Sequence[Flowed]) -> Flowed:
    mark = parts[-1].mark if parts else FlowMark(sieve)
    return Flowed(sum(part.looked_at for part in parts), sum(part.deltas for part in parts), mark)


def _progress(path: Path, sieve: Sieve) -> FlowMark:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=FlowMark)
    except (FileNotFoundError, msgspec.MsgspecError):
        return FlowMark(sieve)
    return found if found.sieve == sieve else FlowMark(sieve)


def _keep(path: Path, at: FlowMark) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.encode(at))
    draft.replace(path)
