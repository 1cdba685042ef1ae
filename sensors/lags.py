"""Reads the lags of all parts of the pipeline every few seconds, for all sensors, and reports them to staging.

A *lag* says that a part of the pipeline has not processed everything that the part upstream has, or is due by the clock
(`sensors.due_times`). Most lags are of one *gateway*, an app's stream of changes. A part's *mark* says how far it is:
an *arrival* (the gateway's timestamp of a push), or the time of its last run. The parts are:

- the *history*, the Iceberg table of all changes. A flush moves the changes to it from *staging*, the gateways'
  database, whose log of the other changes is the *backlog*;
- state tables with the current rows; *checkpoints*, from which new clients load all rows; and *destinations*, databases
  to which the history is copied;
- *polls* of external systems by connectors, *flows* and *migrations* (copies between databases) and *tiers* (transfers
  of old changes to another database), which are due by the clock.

The code location (`lakesync_dagster.definitions`) creates one `PipelineLags`, which all sensors share. It reads the
lake's tables and staging's marks, and writes the *report* to staging: the lags, each with the sensors' *attempts* (run
requests for the part since its mark moved), the runs that have not started, and the *dead letters*: values and tables
that could not be written and were set aside.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec

from assets.names import SLOT, UPKEEP_SLOT
from lakehouse.backends.declared import flow_marks
from lakehouse.marks import suspended_mark
from lakehouse.schema_snapshot import SchemaSnapshot, merged_tables
from lakesync.analysis.lags import FollowerPosition, Lag, compare_marks
from lakesync.analysis.marks import QUEUED_SECONDS, REPORT, DeadLetters, FollowerMark, QueuedRun, Report, report_in
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.staging.records import Backlog
from lakesync.staging.store.pipeline import PipelineMarks, PipelineStore
from sensors.backoff import Attempt, Attempts
from sensors.due_times import FailingPoll, failing_polls, timed_parts

if TYPE_CHECKING:
    from lakesync.analysis.lake_marks import MarkReader

READ_SECONDS = 10.0
"""Seconds between two reads of the lake's marks, while no sensor needs a newer result."""
LIST_SECONDS = 20.0
"""Seconds between two listings of queued runs while no part is behind. A queued run is reported within a minute."""

UNSTARTED = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
)
"""Statuses of runs that have not started."""
UNFINISHED = (*UNSTARTED, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
"""Statuses of runs that have not ended."""

ReadFollowers = Callable[[PipelineMarks], Sequence[FollowerPosition]]
"""Reads from staging how far each destination is."""


class PipelineLags:
    """Reads the lags of the pipeline once for all sensors, which Dagster runs in several threads.

    Each result is written to staging as the pipeline's report, which gateways and `lakesync status` show.
    """

    def __init__(self, config: Config, snapshot: SchemaSnapshot, followers: ReadFollowers = lambda _: ()) -> None:
        """Create the reader; nothing is read yet.

        Args:
            config: the project's configuration.
            snapshot: the registered tables and connectors.
            followers: reads how far each destination is; the default is for a project without destinations.
        """
        self._config = config
        self._followers = followers
        self._snapshot = snapshot
        self._tables = merged_tables(snapshot, config.namespaces)
        self._reader: MarkReader | None = None
        self._lock = threading.Lock()
        self._read_at = -READ_SECONDS
        """Time of the last read, by `time.monotonic`."""
        self._flushed_at_read: list[_FlushedTo] = []
        """What was flushed at the time of the last read. Once it is different, the result of that read is outdated."""
        self._lags: list[Lag] = []
        self.erasures: Sequence[Lag] = ()
        """The open erasures at the erasure sensor's last tick, for the report. Reading them takes a request per
        gateway."""
        self._listed_at = -LIST_SECONDS
        """Time of the last listing of queued runs, by `time.monotonic`."""
        self._queued: tuple[QueuedRun, ...] = ()
        self._attempts: dict[str, Mapping[str, Attempt]] = {}
        """Name of a sensor → key of a part → the sensor's attempts."""
        self._attempts_lock = threading.Lock()
        """Guards `_attempts`. A sensor that reads its cursor does not wait for another one that reads the lake."""

    def record_attempts(self, sensor: str, cursor: str | None) -> Attempts:
        """Return the attempts in a sensor's cursor, and record them for the pipeline's report.

        Args:
            sensor: the sensor's name.
            cursor: the sensor's cursor; None before its first attempt.
        """
        found = Attempts(cursor)
        with self._attempts_lock:
            self._attempts[sensor] = found.by_part
        return found

    def read(
        self,
        store: PipelineStore,
        instance: Callable[[], dg.DagsterInstance],
        backlog: Sequence[Backlog] | None = None,
        *,
        read_again: bool = False,
    ) -> list[Lag]:
        """Return the parts that are behind. If the lake is read for this, write the report.

        The parts are tables, checkpoints, destinations, parts that have been due by the clock for half a minute,
        connectors whose newest poll failed, and open erasures. The history is not among them: the flush sensor reads
        staging itself.

        Args:
            store: the staging store.
            instance: opens Dagster's instance, which takes a tenth of a second. While no part is behind it is called
                only every `LIST_SECONDS`.
            backlog: staging's backlog, as read a moment ago; None to read it.
            read_again: True to read the lake now. Otherwise it is read after a flush or a new checkpoint, and every
                `READ_SECONDS`.

        Raises:
            LakeUnavailableError: the catalogue cannot be read.
        """
        unflushed = store.backlog() if backlog is None else backlog
        flushed = [
            _FlushedTo(each.gateway, each.shard, each.epoch, each.flushed_seq, each.checkpoint_arrival)
            for each in unflushed
        ]
        with self._lock:
            now = time.monotonic()
            if read_again or now - self._read_at >= READ_SECONDS or flushed != self._flushed_at_read:
                now_ms = OffsetClock(self._config.clock_offset_file).now_ms()
                staging_marks, followers = store.marks(), self._followers(store)
                timed = timed_parts(self._config, self._snapshot, staging_marks, now_ms)
                wait_ms = QUEUED_SECONDS * 1000
                # A part is late if it never ran (mark 0), or has been due for half a minute. A mark in the future means
                # that the clock was set back.
                late = [each for each in timed if not (each.mark and each.mark <= now_ms < each.next_ms + wait_ms)]
                all_lags = self._mark_reader().lags(unflushed, self._tables, followers, late, now_ms)
                failing = failing_polls(self._snapshot, staging_marks, now_ms)
                by_key = {lag.key: lag for lag in all_lags} | {each.lag.key: each.lag for each in failing}
                last = report_in(staging_marks)
                self._lags = [*_since_first_reported(by_key.values(), last.lags if last else ()), *self.erasures]
                self._read_at, self._flushed_at_read = now, flushed
                self._report(store, instance, failing, self._dead_letters(staging_marks, followers, now_ms))
            return [lag for lag in self._lags if lag.part != "deltas"]  # `deltas`: the history

    def overdue(self, marks: Mapping[str, str], now_ms: int) -> list[Lag]:
        """Return the polls, flows, tiers and migrations that are due by the clock. It does not read the lake.

        Args:
            marks: name → value of all marks in staging.
            now_ms: server wall time in milliseconds since 1970.
        """
        timed = timed_parts(self._config, self._snapshot, marks, now_ms)
        # without the other arguments, it compares only the clock
        return compare_marks(backlog=(), progress=(), files=(), timed=timed, now_ms=now_ms)

    def _mark_reader(self) -> "MarkReader":
        """Return the reader of the lake's marks, which is created at the first call."""
        if self._reader is None:
            from lakesync.analysis.lake_marks import MarkReader  # imports pyiceberg, which would delay loading

            self._reader = MarkReader(self._config)
        return self._reader

    def _report(
        self,
        store: PipelineMarks,
        instance: Callable[[], dg.DagsterInstance],
        failing: Iterable[FailingPoll],
        dead_letters: Iterable[DeadLetters],
    ) -> None:
        """Write the pipeline's report to staging: lags, queued runs, dead letters, and attempts with the next retry.

        Attempts count only as long as the part's mark does not move. For a connector that fails, failed polls count as
        attempts.
        """
        marks = {lag.key: lag.mark for lag in self._lags}
        counts = {each.lag.key: each.polls for each in failing}
        retries = {each.lag.key: each.next_ms for each in failing}
        with self._attempts_lock:
            by_sensor = list(self._attempts.values())
        for by_part in by_sensor:
            for key, attempt in by_part.items():
                if marks.get(key) == attempt.mark:
                    counts[key] = max(attempt.count, counts.get(key, 0))
                    retries[key] = attempt.next_ms
        report = Report(
            at_ms=OffsetClock(self._config.clock_offset_file).now_ms(),
            lags=tuple(self._lags),
            requests=counts,
            queued=self._queued_runs(instance),
            dead_letters=tuple(dead_letters),
            retries=retries,
        )
        store.put_mark(REPORT, msgspec.json.encode(report).decode())

    def _queued_runs(self, instance: Callable[[], dg.DagsterInstance]) -> tuple[QueuedRun, ...]:
        """Return the result of `queued_runs`; while no part is behind, it may be up to `LIST_SECONDS` old."""
        now = time.monotonic()
        if self._lags or now - self._listed_at >= LIST_SECONDS:
            self._listed_at, self._queued = now, tuple(queued_runs(instance()))
        return self._queued

    def _dead_letters(
        self, marks: Mapping[str, str], followers: Iterable[FollowerPosition], now_ms: int
    ) -> Iterator[DeadLetters]:
        """Yield counts of dead letters (values and tables set aside), each with the time of its first report."""
        last = report_in(marks)
        known = {(each.kind, each.name, each.gateway): each.since_ms for each in last.dead_letters} if last else {}
        rejected = self._mark_reader().rejected.items()
        found = [DeadLetters("value", table, gateway, count, now_ms) for (gateway, table), count in rejected]
        destinations = [each.name for each in followers if each.part == "destination"]
        found += [
            each for name in destinations if name in marks for each in _destination_dead_letters(name, marks[name])
        ]
        for name in flow_marks(self._config):
            tables = msgspec.json.decode(marks.get(suspended_mark(name), "[]"), type=list[str])
            found += [DeadLetters("destination", f"{name}!{table}", "", count=1, since_ms=now_ms) for table in tables]
        for each in found:
            since_ms = known.get((each.kind, each.name, each.gateway), now_ms)
            yield msgspec.structs.replace(each, since_ms=since_ms)


def queued_runs(instance: dg.DagsterInstance) -> list[QueuedRun]:
    """Return the runs that were requested more than `QUEUED_SECONDS` ago and have not started.

    Maintenance is excluded, because its runs are meant to wait for each other and for flushes.

    Args:
        instance: Dagster's instance.
    """
    records = instance.get_run_records(dg.RunsFilter(statuses=list(UNSTARTED)), limit=100)
    found = []
    for record in records:
        since = record.create_timestamp.replace(tzinfo=UTC).timestamp()
        if time.time() - since > QUEUED_SECONDS and record.dagster_run.tags.get(SLOT) != UPKEEP_SLOT:
            found.append(QueuedRun(record.dagster_run.run_id, record.dagster_run.job_name, round(since * 1000)))
    return found


def is_queued_or_running(instance: dg.DagsterInstance, tags: Mapping[str, str], job_name: str | None = None) -> bool:
    """Return whether a run with some tags is queued or in progress, so that another would do the same work.

    Sensors and schedules decide by marks what is due; they use the status of runs only here, to delay a request. A run
    whose process is gone does not delay requests for long, because the run host marks it as ended within a second.

    Args:
        instance: Dagster's instance.
        tags: the tags that the run must have.
        job_name: the job of the run; None for any.
    """
    wanted = dg.RunsFilter(job_name=job_name, tags=tags, statuses=list(UNFINISHED))
    return bool(instance.get_run_records(wanted, limit=1))


class _FlushedTo(NamedTuple):
    """What flushes and checkpoints change in staging, for one gateway and shard."""

    gateway: str
    shard: str
    """One of the gateway's stores."""
    epoch: int
    """When that store was created."""
    seq: int
    """Number of the last flushed push."""
    checkpoint: int | None
    """Arrival of the newest checkpoint; None without one."""


def _since_first_reported(lags: Iterable[Lag], reported: Iterable[Lag]) -> Iterator[Lag]:
    """Yield lags. A part that never ran is due now at each read, so it is behind since the report that first has it.

    Args:
        lags: the lags as read now.
        reported: the lags in the previous report.
    """
    since_ms = {each.key: each.since_ms for each in reported if not each.mark}
    for each in lags:
        first_ms = each.since_ms if each.mark else min(each.since_ms, since_ms.get(each.key, each.since_ms))
        yield msgspec.structs.replace(each, since_ms=first_ms)


def _destination_dead_letters(name: str, text: str) -> Iterator[DeadLetters]:
    """Yield the dead letters of one adapter of a destination, as its latest run reported them to staging.

    Args:
        name: the mark's name, `destinations/DESTINATION/ADAPTER`.
        text: the mark's value.
    """
    mark, target = msgspec.json.decode(text, type=FollowerMark), name.partition("/")[2]
    # the caller sets the time, 0 here; `!` marks a suspended table
    for table in mark.suspended:
        yield DeadLetters("destination", f"{target}!{table}", gateway="", count=1, since_ms=0)
    for gateway, count in mark.dead_letters.items():
        yield DeadLetters("destination", target, gateway, count, since_ms=0)
