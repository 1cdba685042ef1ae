"""The marks that the pipeline keeps in the staging store, as JSON: its report, and how far its parts are.

A *mark* is a text under a name. Dagster's assets and sensors write them; the gateway's `/metrics` and console, the
command line, and the sensors at their next tick read them. `lakesync.analysis.lags` computes the lags of the report. A
gateway is one app's stream of changes (deltas), and the staging store is the database of all gateways. Parts are the
steps of the pipeline, such as a *destination*: a database that follows the *history*, the lake's table of all deltas.
Times are server wall time in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from lakesync.analysis.lags import Lag
from lakesync.staging.records import Backlog

REPORT = "pipeline"
"""Name of the mark with the pipeline's latest `Report`."""


class QueuedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run of the pipeline that was requested and has not started."""

    run_id: str
    job: str
    """The Dagster job's name."""
    since_ms: int
    """When it was requested."""


class DeadLetters(msgspec.Struct, frozen=True, rename="camel"):
    """Counts the dead letters of one table or destination: values, tables and work that were set aside.

    `lakesync dlq list` lists them one by one.
    """

    kind: Literal["value", "destination", "work"]
    """`value`: values of rows that do not fit their columns. `destination`: values or a table that a destination cannot
    store. `work`: failed updates of destination tables by a gateway without a pipeline."""
    name: str
    """The table; for destinations `NAME/ADAPTER`, and `NAME/ADAPTER!TABLE` for a table whose rows are not written."""
    gateway: str
    """Empty for all gateways that the destination follows."""
    count: int
    """Number of these values or updates."""
    since_ms: int
    """When the first of them was recorded."""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The latest comparison of marks, which sensors write to staging so that others can show it."""

    at_ms: int
    """When the marks were compared."""
    lags: tuple[Lag, ...] = ()
    """The parts that are behind."""
    requests: dict[str, int] = {}
    """`Lag.key` of a part → number of runs that were requested since its mark moved. With `FAILING` of them, the part
    is failing."""
    queued: tuple[QueuedRun, ...] = ()
    """Runs that have not started for longer than `QUEUED_SECONDS`."""
    dead_letters: tuple[DeadLetters, ...] = ()
    retries: dict[str, int] = {}
    """`Lag.key` of a part → when the next run is requested, unless its mark moves."""

    def of(self, gateway: str) -> list[Lag]:
        """Return the lags of one gateway, and those of flows, tiers and migrations, which belong to all gateways."""
        return [lag for lag in self.lags if lag.gateway in (gateway, "")]


FAILING = 3
"""Requested runs after which a part counts as failing if its mark has not moved. Two had no effect; the third may be
running."""
QUEUED_SECONDS = 30
"""Seconds after which a run that has not started is reported."""


def report_in(marks: Mapping[str, str]) -> Report | None:
    """Return the pipeline's latest report among staging's marks; None if no pipeline has ever reported."""
    text = marks.get(REPORT)
    return msgspec.json.decode(text, type=Report) if text is not None else None


class FollowerMark(msgspec.Struct, frozen=True, rename="camel"):
    """How far a destination (a database that follows the history) was at the end of its latest run.

    The authoritative mark is stored at the destination; this copy lets sensors see it without connecting there.
    """

    selection: str = msgspec.field(name="choice")  # its name in the stored JSON
    """The tables and gateways that it follows, as text. If the configuration selects others, the mark is void."""
    streams: dict[str, int]
    """`GATEWAY/SHARD` → the arrival (the gateway's timestamp of a push) up to which it has everything. A shard is a
    staging store with some of the tables."""
    at_ms: int
    """End of that run."""
    retry_ms: int | None = None
    """When a suspended table (one that could not be written) is retried; None without one."""
    suspended: tuple[str, ...] = msgspec.field(name="setAside", default=())  # its name in the stored JSON
    """Suspended tables."""
    dead_letters: dict[str, int] = {}
    """Gateway → number of values that its destination tables cannot store."""


class FailingTable(msgspec.Struct, frozen=True, rename="camel"):
    """A connector's table that the latest polls did not read or did not push completely."""

    count: int
    """Failed polls in a row."""
    since_ms: int
    """Start of the first of them."""
    begun_ms: int
    """Start of the latest."""
    ended_ms: int
    """End of the latest."""


class FailedPolls(msgspec.Struct, frozen=True, rename="camel"):
    """The failing tables of a connector. Each is polled again after a pause of its own."""

    tables: dict[str, FailingTable] = {}
    """By table name."""


class Visit(msgspec.Struct, frozen=True, rename="camel"):
    """The last visit to a part: its maintenance, or its audit, which compares it with its input."""

    state: str
    """The part's state then, as the text that a function such as `flushed_state` returns."""
    at_ms: int
    """When it took place."""


def is_visit_due(text: str | None, state: str, now_ms: int, longest_ms: int) -> bool:
    """Return whether a part must be visited again: its state has changed, or the last visit is too old.

    Args:
        text: the mark of the last visit, a `Visit` in JSON; None before the first.
        state: the part's state now.
        now_ms: the current time.
        longest_ms: milliseconds between two visits, at most.
    """
    visit = msgspec.json.decode(text, type=Visit) if text is not None else None
    if visit is None or visit.state != state:
        return True
    return not 0 <= now_ms - visit.at_ms < longest_ms  # below 0 if the clock was set back since


def checkpoint_state(backlog: Iterable[Backlog]) -> str:
    """Return the state of the published checkpoints, their arrivals, as a text for `is_visit_due`."""
    return msgspec.json.encode(
        sorted((each.gateway, each.shard, each.checkpoint_arrival or 0) for each in backlog)
    ).decode()


def destination_state(text: str | None) -> str:
    """Return the progress of a destination as a text, for `is_visit_due`.

    Args:
        text: its mark in staging, a `FollowerMark` in JSON; None if it has no deltas yet.
    """
    streams = msgspec.json.decode(text, type=FollowerMark).streams if text is not None else {}
    return msgspec.json.encode(streams, order="sorted").decode()


def flushed_state(backlog: Iterable[Backlog]) -> str:
    """Return the flushed sequences of staging's log as a text, for `is_visit_due`."""
    return msgspec.json.encode(
        sorted((each.gateway, each.shard, each.epoch, each.flushed_seq) for each in backlog)
    ).decode()
