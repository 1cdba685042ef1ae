"""`--prove`: killed processes recover, and repeated work changes nothing. `Demo` (`demo.py`) calls it.

Processes are killed with SIGKILL while they work; `lakesync up` starts them again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable

from examples.flights.journal import Journal
from examples.flights.lake import Lake
from examples.flights.pipeline import Dagster
from examples.flights.play import Play
from examples.flights.schemas import COLUMNS
from examples.flights.system import System

GATEWAY_KILLS = 20
"""How often the gateway is killed during the pushes."""
RUN_SECONDS = 300.0
"""Seconds after which a repeated merge has failed."""
TABLES_JOB = "tables"
FLUSH_JOB = "flush"
CHECK_SECONDS = 0.005
"""Seconds between two checks."""


class Killer:
    """Kills the gateway at random times during the pushes, and Spark once during a flush."""

    def __init__(self, system: System, journal: Journal, pushes: int) -> None:
        """Choose the times.

        Args:
            system: the processes.
            journal: counts the acknowledged pushes.
            pushes: the minimum number of pushes. The gateway is killed after randomly chosen ones.
        """
        self.gateway_kills = 0
        self.spark_kills = 0
        self._system = system
        self._journal = journal
        self._moments = sorted(random.sample(range(1, max(pushes * 9 // 10, GATEWAY_KILLS + 1)), GATEWAY_KILLS))
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, play: Play) -> None:
        """Start killing."""
        for target in (lambda: self._kill_gateways(play), self._kill_spark):
            thread = threading.Thread(target=target, name="killer", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Stop killing."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _kill_gateways(self, play: Play) -> None:
        """Kill the gateway at the chosen times, and each time wait until it is ready again."""
        for moment in self._moments:
            while self._journal.pushes < moment or not play.busy.is_set():
                if self._over.wait(CHECK_SECONDS):
                    return
            time.sleep(random.uniform(0, 0.02))  # noqa: S311
            before = self._system.up_info()["gateway"]["pid"]
            self._system.kill("gateway")
            self.gateway_kills += 1
            while not self._came_back(before):
                if self._over.wait(CHECK_SECONDS):
                    return

    def _came_back(self, before: int) -> bool:
        """Return whether another process than `before` serves the gateway."""
        gateway = self._system.up_info()["gateway"]
        return bool(gateway["pid"] != before and gateway["state"] == "ready")

    def _kill_spark(self) -> None:
        """Kill Spark some seconds after a flush has begun, if it still runs then; else wait for the next one."""
        while not self._system.up_info().get("ready"):
            if self._over.wait(0.1):
                return
        dagster = Dagster(self._system.dagster)
        while not self.spark_kills:
            if any(run.job == FLUSH_JOB and run.status == "STARTED" for run in dagster.runs(5)):
                time.sleep(random.uniform(1, 5))  # noqa: S311
                if any(run.job == FLUSH_JOB and run.status == "STARTED" for run in dagster.runs(5)):
                    self._system.kill("spark")
                    self.spark_kills += 1
            if self._over.wait(0.1):
                return


def run_again(dagster: Dagster, lake: Lake, days: Iterable[str], on_progress: Callable[[str], None]) -> int:
    """Merge every day of arrival again, one run per day in random order, then rebuild all tables.

    Returns the number of tables whose content changed, compared after each run.

    Raises:
        RunFailedError: a run failed.
    """
    before = lake.hashes()
    order = sorted(days)
    random.shuffle(order)
    rebuild = {"ops": {f"tables__{table}": {"config": {"rebuild": True}} for table in COLUMNS}}
    wanted = [(day, day, None) for day in order] + [("a rebuild from nothing", max(order), rebuild)]
    changed = 0
    for name, day, config in wanted:
        on_progress(name)
        run = dagster.launch(TABLES_JOB, {"dagster/partition": day, "demo": name}, config)
        dagster.finished([run], RUN_SECONDS)
        after = lake.hashes()
        changed += sum(after[table] != content for table, content in before.items())
    return changed
