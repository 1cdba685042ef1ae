"""`scripts/pipeline-storm`: runs of the pipeline are killed and cancelled at random while clients push.

After each accident it is measured how long everything that was acknowledged before takes to be in the history, the
state tables, the checkpoints and the destinations. One destination is always away and delays nothing. With
`--poisoned`, so do a tenant, a table, a table at a destination and a connector. At the end, all that can be equal is
compared, and what cannot has to be named. The last line is one JSON object; the exit code is 0 only where that held.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import requests

from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.scans import all_of, condition
from lakesync.config import load
from tests.conformance.test_adapters import everything
from tests.pipeline_storm.poison import Poison
from tests.pipeline_storm.system import BROKEN, System


class Writers:
    """Clients that push until they are stopped; what was acknowledged."""

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
            while not self._stop.is_set():  # as a client does: until it is acknowledged
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
    """How far the system is, apart from what is poisoned."""

    def __init__(self, system: System, bound: float, poison: Poison | None) -> None:
        """Args: bound: seconds within which everything has to be up to date."""
        self._system, self._bound, self._poison = system, bound, poison

    def behind_since(self, moment_ms: float) -> list[str]:
        """Return the parts that lack anything acknowledged before a moment, but for those that are poisoned."""
        found = []
        for gateway in self._system.gateways:
            told = self._system.pipeline(gateway)
            if told["reportedMs"] <= moment_ms:
                return [f"no report since then ({gateway})"]
            if told["oldest_ms"] is not None and told["oldest_ms"] < moment_ms:
                found.append(f"{gateway} deltas")
            found += [
                f"{gateway} {part['part']} {part['name']}"
                for part in told["behind"]
                if part["sinceMs"] < moment_ms and not self._is_poisoned(gateway, part["part"], part["name"])
            ]
        return found

    def healed(self, moment_ms: float) -> float:
        """Wait until everything acknowledged before a moment is everywhere; seconds from then."""

        def done() -> bool:
            try:
                return not self.behind_since(moment_ms)
            except (requests.RequestException, KeyError):
                return False  # the gateway is asked again

        try:
            self._system.wait(done, self._bound, "everything to be up to date")
        except TimeoutError as error:
            error.add_note(f"behind: {self.behind_since(moment_ms)}")
            raise
        return time.time() - moment_ms / 1000

    def polled(self) -> float:
        """Change the site that a connector polls; seconds until the lake has it."""
        assert self._poison is not None
        begun = time.monotonic()
        self._poison.add_issue()
        self._system.wait(self._poison.issues_are_in_the_lake, self._bound, "an issue to be in the lake")
        return time.monotonic() - begun

    def _is_poisoned(self, gateway: str, part: str, name: str) -> bool:
        return BROKEN in name or (self._poison is not None and self._poison.is_poisoned(gateway, part, name))


def differences(system: System, acknowledged: dict[str, Counter[str]], poison: Poison | None) -> list[str]:
    """Compare what was acknowledged with history, tables, checkpoints and the destination that keeps rows."""

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
                rows = (system.pipeline(gateway)["cut"] or {}).get("rows")
                compare(f"{gateway} checkpoint", sum(tables.values()) + polled, rows)
    return found


def main() -> int:
    """Cause accidents, and judge."""
    parser = argparse.ArgumentParser(prog="scripts/pipeline-storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of accidents")
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--poisoned", action="store_true", help="poison a tenant, two tables and a connector")
    parser.add_argument("--bound", type=float, default=300, help="seconds within which each accident has to heal")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pushes of a gateway")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    report: dict[str, Any] = {"accidents": Counter(), "healing": [], "polled": [], "unnamed": []}
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
                    report["polled"].append(watch.polled())
                    poison.take_effect()
                _cause_accidents(system, watch, options.seconds, report)
                if poison is not None:
                    report["polled"].append(watch.polled())
            finally:
                writers.stop()
            # One more, after the last push.
            system.wait(system.cancel, 60, "a run to cancel")
            report["last"] = round(watch.healed(time.time() * 1000), 1)
            report["deltas"] = sum(sum(tables.values()) for tables in writers.acknowledged.values())
            report["differences"] = differences(system, writers.acknowledged, poison)
            report["unnamed"] = poison.unnamed() if poison is not None else []
        finally:
            system.end()
    times = sorted(report.pop("healing"))
    if len(times) > 1:
        report["p50"] = round(statistics.median(times), 1)
        report["p95"] = round(statistics.quantiles(times, n=20, method="inclusive")[-1], 1)
        report["longest"] = round(times[-1], 1)
    print(json.dumps({**report, "measured": len(times)}))
    return 1 if report["differences"] or report["unnamed"] or not times else 0


def _cause_accidents(system: System, watch: Watch, seconds: float, report: dict[str, Any]) -> None:
    """One accident after another, each measured."""
    accidents = (*(system.cancel, system.kill_run) * 2, system.backfill, system.kill_code_server)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(random.uniform(1, 10))
        accident = random.choice(accidents)
        with suppress(requests.RequestException, KeyError, ProcessLookupError):
            if not accident():
                continue
            moment = time.time() * 1000
            took = watch.healed(moment)
            report["accidents"][accident.__name__] += 1
            report["healing"].append(took)
            print(f"{accident.__name__}: {took:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
