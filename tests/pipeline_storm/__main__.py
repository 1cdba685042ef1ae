"""Kill and cancel runs of the pipeline at random while clients push, and measure the recovery time.

After each accident, it measures the time until every delta that was acknowledged before is in the history,
the state tables, the checkpoints and the destinations. One destination is always unreachable, and must delay nothing.
With `--poisoned` the same holds for a tenant, a table, a table at a destination and a connector. At the end all copies
are compared, except those of the poisoned members, which a report must name. The last line of the output is one JSON
object with the healing times. The exit code is 0 if every accident healed and no copy differs.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.scans import all_of, condition
from lakesync.config import load
from tests.conformance.test_adapters import everything
from tests.pipeline_storm.poison import POISONED_GATEWAYS, Poison
from tests.pipeline_storm.system import BROKEN, System
from tests.storm_options import script_parser

if TYPE_CHECKING:
    from collections.abc import Callable


POLLED_EVERY = 5
"""Accidents between two measurements of a poll."""


class Writers:
    """Clients that push until they are stopped; records the acknowledged deltas."""

    def __init__(self, system: System, pause: float) -> None:
        """Start one for each gateway."""
        self._system, self._pause = system, pause
        self._stop = threading.Event()
        self.acknowledged: dict[str, Counter[str]] = {gateway: Counter() for gateway in system.gateways}
        self._threads = [threading.Thread(target=self._write, args=[gateway]) for gateway in system.gateways]
        for thread in self._threads:
            thread.start()

    def _write(self, gateway: str) -> None:
        made, number = random.Random(gateway), 0
        while not self._stop.wait(self._pause * made.uniform(0.5, 1.5)):
            table, number = made.choice(self._system.tables_of(gateway)), number + 1
            while not self._stop.is_set():  # repeat until it is acknowledged, as a client does
                with suppress(requests.RequestException, KeyError):
                    self._system.push(gateway, table, f"{number}", number)
                    self.acknowledged[gateway][table] += 1
                    break
                time.sleep(0.5)

    def stop(self) -> None:
        """Stop all of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Watch:
    """The progress of the system, without the poisoned members."""

    def __init__(self, system: System, bound: float, poison: Poison | None) -> None:
        """Args: bound: seconds within which everything must be up to date."""
        self._system, self._bound, self._poison = system, bound, poison

    @property
    def is_poisoned(self) -> bool:
        """Whether members are poisoned, and an unpoisoned connector polls a site."""
        return self._poison is not None

    def behind_since(self, moment_ms: float) -> list[str]:
        """Return the parts, without poisoned ones, that lack anything acknowledged before a moment."""
        found = []
        for gateway in self._system.gateways:
            state = self._system.pipeline(gateway)
            if state["reportedMs"] <= moment_ms:
                return [f"no report since then ({gateway})"]
            if state["oldest_ms"] is not None and state["oldest_ms"] < moment_ms:
                found.append(f"{gateway} deltas")
            found += [
                f"{gateway} {part['part']} {part['name']}"
                for part in state["behind"]
                if part["sinceMs"] < moment_ms and not self._is_poisoned(gateway, part["part"], part["name"])
            ]
        return found

    def healed(self, moment_ms: float) -> float:
        """Wait until everything acknowledged before a moment is in every copy; return the seconds since then.

        Raises:
            TimeoutError: the bound was exceeded; the message names the parts that are behind.
        """

        behind: list[str] = []

        def done() -> bool:
            try:
                behind[:] = self.behind_since(moment_ms)
            except (requests.RequestException, KeyError):
                return False  # the next call is repeated too
            return not behind

        try:
            self._system.wait(done, self._bound, "everything to be up to date")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; behind: {', '.join(behind)}") from None
        return time.time() - moment_ms / 1000

    def polled(self) -> float:
        """Change the site that a connector polls; return the seconds until the lake has the change."""
        assert self._poison is not None
        begun = time.monotonic()
        self._poison.add_issue()
        self._system.wait(self._poison.issues_are_in_the_lake, self._bound, "an issue to be in the lake")
        return time.monotonic() - begun

    def _is_poisoned(self, gateway: str, part: str, name: str) -> bool:
        return BROKEN in name or (self._poison is not None and self._poison.is_poisoned(gateway, part, name))


def differences(system: System, acknowledged: dict[str, Counter[str]], poison: Poison | None) -> list[str]:
    """Compare the acknowledged deltas with the history, the tables, the checkpoints and the destination with rows."""

    def is_poisoned(gateway: str, part: str, name: str) -> bool:
        return poison is not None and poison.is_poisoned(gateway, part, name)

    found: list[str] = []

    def compare(what: str, expected: object, there: object) -> None:
        if expected != there:
            found.append(f"{what}: {expected} acknowledged, {there} there")

    config = load({"data_dir": system.data})
    with closing(open_adapter(f"sqlite://{system.folder}/copy.db")) as adapter:
        there = {(each.gateway, each.delta.table, each.delta.row_id) for each in everything(adapter)}
    copied = Counter((gateway, table) for gateway, table, _ in there)
    with LakeReader(config) as lake:
        history = lake.deltas
        assert history is not None
        for gateway, tables in acknowledged.items():
            for table, count in tables.items():
                own = all_of(condition("gateway", "=", gateway), condition("table_name", "=", table))
                rows = history.scan(own, selected_fields=("row_id",)).to_arrow()["row_id"]
                compare(f"{gateway} {table} history", count, len(rows.unique()))
                compare(f"{gateway} {table} copy", count, copied[gateway, table])
                if is_poisoned(gateway, "table", table):
                    continue
                state = lake.state_table_of(gateway, table)
                merged = state.scan(condition("_gateway", "=", gateway)).to_arrow().num_rows if state is not None else 0
                compare(f"{gateway} {table} state", count, merged)
            if not is_poisoned(gateway, "checkpoint", ""):
                polled = poison.issues + 1 if poison is not None and gateway == poison.polled else 0
                rows = (system.pipeline(gateway)["checkpoint"] or {}).get("rows")
                compare(f"{gateway} checkpoint", sum(tables.values()) + polled, rows)
    return found


def main() -> int:
    """Cause accidents, and return the exit code."""
    parser = script_parser(
        "scripts/pipeline-storm", __doc__, "--gateways 10 --tables 20 --poisoned --seconds 3600 --bound 900"
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long accidents are caused (default: 600)")
    parser.add_argument("--gateways", type=int, default=4, help="number of gateways (default: 4)")
    parser.add_argument("--tables", type=int, default=5, help="tables of each gateway (default: 5)")
    parser.add_argument("--poisoned", action="store_true", help="make a tenant, two tables and a connector fail")
    parser.add_argument(
        "--bound", type=float, default=300, help="seconds within which each accident must heal (default: 300)"
    )
    parser.add_argument(
        "--pause", type=float, default=1.0, help="mean seconds between two pushes of a gateway (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the accidents (default: 1)")
    options = parser.parse_args()
    if options.poisoned and options.gateways < POISONED_GATEWAYS:
        parser.error(f"--gateways {options.gateways}: --poisoned needs {POISONED_GATEWAYS} or more")
    random.seed(options.seed)
    times: dict[str, list[float]] = {}
    unhealed: list[str] = []
    report: dict[str, Any] = {"unhealed": unhealed}
    with (
        tempfile.TemporaryDirectory(prefix="lakesync-storm-", ignore_cleanup_errors=True) as folder,
        ExitStack() as closing,
    ):
        system = System(Path(folder), options.gateways, options.tables, poisoned=options.poisoned)
        try:
            poison = Poison(system, closing) if options.poisoned else None
            watch = Watch(system, options.bound, poison)
            writers = Writers(system, options.pause)
            try:
                time.sleep(options.pause)
                report["first"] = round(watch.healed(time.time() * 1000), 1)  # the first flush warms Spark up
                if poison is not None:
                    watch.polled()
                    poison.take_effect()
                _cause_accidents(system, watch, options.seconds, times, unhealed)
            finally:
                writers.stop()
            try:  # one more, after the last push
                system.wait(system.cancel, options.bound, "a run to cancel")
                report["last"] = round(watch.healed(time.time() * 1000), 1)
            except TimeoutError as error:
                unhealed.append(f"last: {error}")
            report["deltas"] = sum(sum(tables.values()) for tables in writers.acknowledged.values())
            report["differences"] = differences(system, writers.acknowledged, poison)
            report["unnamed"] = poison.unnamed() if poison is not None else []
        finally:
            system.end()
    if poison is not None:
        report["polled"] = summary(times.pop("polled", []))
    report["healing"] = {
        "all": summary([each for found in times.values() for each in found]),
        **{name: summary(found) for name, found in sorted(times.items())},
    }
    print(json.dumps(report))
    return 1 if report["differences"] or report["unnamed"] or unhealed or not times else 0


def summary(seconds: list[float]) -> dict[str, float]:
    """Return how many times were measured, and their median, 95th percentile and maximum in seconds."""
    if not seconds:
        return {"count": 0}
    p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    found = {"p50": statistics.median(seconds), "p95": p95, "max": max(seconds)}
    return {"count": len(seconds), **{name: round(value, 1) for name, value in found.items()}}


def _cause_accidents(
    system: System, watch: Watch, seconds: float, times: dict[str, list[float]], unhealed: list[str]
) -> None:
    """Cause one accident after another, and measure each; with poison, also the time of a poll's rows to the lake.

    Args:
        system: the running system. watch: measures the recovery. seconds: the time during which accidents are caused.
        times: kind of accident → seconds until it had healed, and `polled`; filled.
        unhealed: accidents that did not heal within the bound, with what was behind; filled.
    """
    accidents = (*(system.cancel, system.kill_run) * 2, system.backfill, system.kill_code_server)
    ends, number = time.monotonic() + seconds, 0

    def measure(name: str, seconds_until: Callable[[], float]) -> None:
        try:
            took = seconds_until()
        except TimeoutError as error:
            unhealed.append(f"{name}: {error}")
            print(unhealed[-1], file=sys.stderr, flush=True)
            return
        times.setdefault(name, []).append(took)
        print(f"{name}: {took:.1f} s", file=sys.stderr, flush=True)

    while time.monotonic() < ends:
        time.sleep(random.uniform(1, 10))
        accident = random.choice(accidents)
        with suppress(requests.RequestException, KeyError, ProcessLookupError):
            if accident():
                measure(accident.__name__, partial(watch.healed, time.time() * 1000))
                if watch.is_poisoned and number % POLLED_EVERY == 0:
                    measure("polled", watch.polled)
                number += 1


if __name__ == "__main__":
    sys.exit(main())
