"""The demo from start to end: start, push, flush, verify and report. `__main__.py` runs it.

The clients write each push into a journal too. `truth.py` merges the journal with code of its own, so that its result,
the truth, can be compared with the lake and with the clients' rows. A *cell* is a column of a row. The *stamp* of a
write is `(hlc, client)`, the time by the client's clock and the client's id; the greatest stamp wins the cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.flights import connectors, pipeline
from examples.flights.client import BATCH, Journal, first_sync
from examples.flights.data import COLUMNS
from examples.flights.driver import GATEWAY_KILLS, Driver, DriverResult, Killer
from examples.flights.pipeline import Dagster
from examples.flights.report import Reporter, Result
from examples.flights.system import System
from examples.flights.truth import Truth, replica_mismatches, state_mismatches, visible_rows
from examples.flights.workload import CLIENTS, Step, Workload, day_of

FLUSH_SECONDS = 600.0
"""Seconds without progress after which the pipeline has failed."""
MAX_DAYS_IN_MEMORY = 31
"""Maximum number of days for which all writes are held in memory."""
DELTAS_PER_DAY = 2950
"""About the number of deltas in a day."""
PUSHES_PER_DAY = 25
"""A number of pushes that every day has at least."""
NEW_DEVICE_CARRIER = "B6"
"""The carrier whose new device syncs at the end."""
MIN_CROSSED_SHARE = 0.05
"""Minimum share of cells whose stamps arrive out of order."""


@dataclass(frozen=True)
class Options:
    """The command line's options."""

    days: int
    """Days of flights."""
    data: Path
    """The data folder."""
    prove: bool = False
    """Whether to kill processes, and to repeat all merges."""
    keep: bool = False
    """Whether to leave the system running at the end."""
    json: bool = False
    """Whether stdout is for one line of JSON."""
    connectors: bool = False
    """Whether to poll fake vendors too."""


@dataclass(frozen=True)
class PlannedSteps:
    """The steps that clients push: prepared before a short run, and generated during a long one, to save memory."""

    steps: Iterable[Step]
    deltas: int
    """The number of deltas; approximate for a long run."""
    pushes: int
    """The number of pushes that happen at least."""

    @classmethod
    def of(cls, workload: Workload) -> PlannedSteps:
        """Return the steps of a workload."""
        if workload.days > MAX_DAYS_IN_MEMORY:
            return cls(workload.steps(), DELTAS_PER_DAY * workload.days, PUSHES_PER_DAY * MAX_DAYS_IN_MEMORY)
        steps = list(workload.steps())
        outboxes = [outbox for step in steps for outbox in step.outboxes.values()]
        return cls(steps, sum(map(len, outboxes)), sum(-(-len(outbox) // BATCH) for outbox in outboxes))


class Demo:
    """One run of the demo."""

    def __init__(self, options: Options) -> None:
        """Prepare a run; `run` starts the system."""
        self.options = options
        self.reporter = Reporter(as_json=options.json)
        self.system = System(options.data, brief=options.days <= MAX_DAYS_IN_MEMORY)
        self.result = Result(days=options.days)

    def run(self) -> Result:
        """Run everything. The result says whether all comparisons agree.

        Raises:
            SystemFailedError, RequestError, NotInLakeError, RunFailedError: the run could not be completed.
        """
        reporter = self.reporter
        try:
            with reporter.stage("start", "Starting lakesync up; the gateway first"):
                self.system.start()
                planned = PlannedSteps.of(Workload(self.options.days))
                self.system.wait_gateway()
                self.system.register()
            journal = Journal(self.system.data / "journal")
            with closing(Driver(self.system.gateway, self.system.secret, journal, self.system.clock)) as driver:
                self._run_stages(planned, driver)
        finally:
            if self.system.running and self.options.keep:
                reporter.line(f"lakesync up keeps running as process {self.system.pid}: kill {self.system.pid} ends it")
            elif self.system.running:
                with reporter.stage("stop", "Stopping"):
                    self.system.stop()
        self.result.seconds = {**reporter.seconds, "total": round(reporter.elapsed, 2)}
        return self.result

    def _run_stages(self, planned: PlannedSteps, driver: Driver) -> None:
        """Run all stages on the started system, and fill the result."""
        killer = None
        if self.options.prove:
            killer = Killer(self.system, driver.journal, planned.pushes)
            killer.start(driver)
        done = self._push(driver, planned)
        with self.reporter.stage("ready", "Waiting for Spark and Dagster"):
            self.system.wait_all()
        self.system.request_flush()
        with self.reporter.stage("truth", "Computing the truth from the journal"):
            truth = Truth(driver.journal)
            truth.reduce("final", done.last_step)
            truth.reduce("middle", done.middle[0])
        self._wait_for_lake(done)
        if killer is not None:
            killer.end()
            self.result.kills = killer.gateway_kills + killer.spark_kills
            self.result.wrong["kills that did not happen"] = GATEWAY_KILLS + 1 - self.result.kills
        self._check(truth, driver, done)
        if self.options.prove:
            self._prove(truth)
        if self.options.connectors:
            self._poll()
        self._report(truth)

    def _push(self, driver: Driver, planned: PlannedSteps) -> DriverResult:
        """Let the clients push everything."""
        with self.reporter.stage("push", f"{len(driver.clients)} clients push their changes") as stage:
            stage.set_total(planned.deltas)

            def report(step: Step) -> None:
                stage.set_done(driver.done.deltas)
                stage.set_note(day_of(step.number))

            done = driver.run(planned.steps, report)
        self.result.rates["push"] = round(done.deltas / done.push_seconds, 1)
        self.result.rates["pull"] = round(done.pulled / max(done.pull_seconds, 1e-9), 1)
        self.result.pulled, self.result.repeats = done.pulled, done.repeats
        self.result.clients = len(driver.clients)
        return done

    def _wait_for_lake(self, done: DriverResult) -> None:
        """Wait until the pipeline has everything in the lake."""
        with (
            self.reporter.stage("carry", "Dagster carries it into the lake, on Spark") as stage,
            pipeline.staging(self.system.configuration()) as store,
        ):
            stage.set_total(done.deltas)
            dagster = Dagster(self.system.dagster)

            def report(waiting: int) -> None:
                stage.set_done(done.deltas - waiting)
                runs = dagster.runs(2 * pipeline.MAX_FAILURES)  # some may not have ended
                stage.set_note(", ".join(f"{run.job} {run.status.lower()}" for run in runs[:1]))
                dagster.check(runs)

            pipeline.wait_until_in_lake(store, FLUSH_SECONDS, report)

    def _check(self, truth: Truth, driver: Driver, done: DriverResult) -> None:
        """Compare the lake, the clients and a new client with the truth, at the end and as of the middle of the run."""
        wrong = self.result.wrong
        with self.reporter.stage("check", "Comparing lake and clients with the truth"):
            self._tables(truth, "lake")
            counts, (deltas, distinct) = truth.counts, self.system.lake.count()
            wrong["deltas in the lake"] = abs(deltas - counts.distinct)
            wrong["deltas twice in the lake"] = deltas - distinct
            wrong["deltas acknowledged"] = abs(counts.distinct - done.deltas) + counts.deltas - counts.distinct
            wrong["too few crossing cells"] = int(counts.crossed < MIN_CROSSED_SHARE * counts.cells)
            expected = visible_rows(truth, "final")
            wrong["rows of the clients"] = sum(
                replica_mismatches(expected, client.claims.get("carrier"), driver.clients[client.id].replica)
                for client in CLIENTS
            )
            new_device = first_sync(
                self.system.gateway, self.system.secret, NEW_DEVICE_CARRIER, self.system.data / "new-device.db"
            )
            wrong["rows of the new client"] = replica_mismatches(expected, NEW_DEVICE_CARRIER, new_device.replica)
        with self.reporter.stage("as_of", "Comparing the state of the middle of the run"):
            states = pipeline.states_as_of(self.system.configuration(), done.middle[1])
            self.result.asof_mismatches = sum(
                state_mismatches(truth, "middle", table, state) for table, state in states.items()
            )

    def _tables(self, truth: Truth, what: str) -> None:
        """Compare each state table with the truth; `what` names the comparison in the result."""
        for table in COLUMNS:
            found = state_mismatches(truth, "final", table, self.system.lake.state(table))
            self.result.wrong[f"{what}: {table}"] = found

    def _prove(self, truth: Truth) -> None:
        """Repeat all merges, and check that no table changes."""
        dagster = Dagster(self.system.dagster)
        steps = truth.database.execute("select distinct step from journal").fetchall()
        days = {day_of(step) for (step,) in steps}
        with self.reporter.stage(
            "prove", f"Merging {len(days)} days again in random order, then from nothing"
        ) as stage:
            pipeline.erase_marks(self.system.configuration())
            changed = pipeline.repeat_merges(dagster, self.system.lake, days, stage.set_note)
            self.result.wrong["contents changed by a repeat"] = changed
            self._tables(truth, "after the repeats")

    def _poll(self) -> None:
        """Poll fake vendors, and compare what a client and the lake have of them."""
        system, lake = self.system, self.system.lake
        with connectors.vendors() as vendors:
            with self.reporter.stage("poll", "Dagster polls a Jira site and a Salesforce organisation"):
                connectors.register(system, vendors.connectors)
                connectors.wait_for("a client", lambda: connectors.at_a_client(system), vendors.truth())
                connectors.change(vendors)
                truth = vendors.truth()
                connectors.wait_for("a client", lambda: connectors.at_a_client(system), truth)
            with self.reporter.stage("poll_carry", "Waiting for the lake to show the same"):
                connectors.request_flush(system)
                connectors.wait_for("the lake", lambda: connectors.in_the_lake(lake), truth)
            at_client, in_lake = connectors.at_a_client(system), connectors.in_the_lake(lake)
        for table, columns in connectors.SHOWN.items():
            self.result.wrong[f"{table} at a client"] = connectors.mismatches(at_client[table], truth[table])
            self.result.wrong[f"{table} in the lake"] = connectors.mismatches(in_lake[table], truth[table])
            self.result.polled[table] = [{"id": row_id, **row} for row_id, row in sorted(in_lake[table].items())]
            rows = [
                (row_id, *(str(row[column]) for column in columns)) for row_id, row in sorted(in_lake[table].items())
            ]
            self.reporter.table(f"{table}, in the lake as at a client (5 of {len(rows)})", ("id", *columns), rows[:5])

    def _report(self, truth: Truth) -> None:
        """Complete the result, and print it."""
        counts, result, reporter = truth.counts, self.result, self.reporter
        result.deltas, result.cells, result.conflicts, result.crossed = (
            counts.deltas,
            counts.cells,
            counts.conflicts,
            counts.crossed,
        )
        result.losers, result.late, result.rows = counts.losers, counts.late, truth.visible("final")
        runs = Dagster(self.system.dagster).runs()
        result.runs = [run.as_json() for run in runs]
        if not any(run.requested_by == "flush_sensor" and run.status == "SUCCESS" for run in runs):
            result.wrong["runs that the flush sensor requested"] = 1
        result.mismatches = sum(result.wrong.values())
        result.ok = not result.mismatches and not result.asof_mismatches
        result.rates["carry"] = round(counts.deltas / max(reporter.seconds["carry"], 1e-9), 1)
        reporter.table(
            "Delays by carrier, from the lake",
            ("carrier", "name", "flights", "departure", "arrival"),
            self.system.lake.delays(),
        )
        reporter.table(
            "What happened",
            ("", "count"),
            [
                ("clients", result.clients),
                ("deltas acknowledged", result.deltas),
                ("cells with two writers or more", result.conflicts),
                ("cells whose stamps cross the order of arrival", result.crossed),
                ("deltas that lost a value", result.losers),
                ("deltas that came late", result.late),
                ("deltas pulled", result.pulled),
                ("requests repeated", result.repeats),
                ("kills", result.kills),
                ("rows visible in the end", result.rows),
                ("runs", len(result.runs)),
                ("mismatches", result.mismatches),
                ("mismatches as of the middle", result.asof_mismatches),
            ],
        )
        reporter.table("How fast", ("stage", "seconds"), list(reporter.seconds.items()))
        reporter.table("How much", ("stage", "deltas a second"), list(result.rates.items()))
        for what, count in result.wrong.items():
            if count:
                reporter.paragraph(f"[red]✗ {what}: {count:,}[/red]")
        reporter.paragraph(f"Dagster {self.system.dagster}   gateway {self.system.gateway}   data {self.system.data}")
        reporter.paragraph("[green]everything agrees[/green]" if result.ok else "[red]not everything agrees[/red]")
