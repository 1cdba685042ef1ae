"""`scripts/pipeline-storm`: runs of the pipeline are killed and cancelled at random while clients push.

After each accident it is measured how long everything that was acknowledged before takes to be in the history, the
state tables, the checkpoints and the destinations. One destination is always away and delays nothing. At the end, all
that can be equal is compared. The last line is one JSON object; the exit code is 0 only where all was equal.
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
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import requests

from lakesync.adapters import open_adapter
from lakesync.analysis.catalogue import Lake
from lakesync.analysis.scans import both, holds
from lakesync.config import load
from tests.conformance.test_adapters import everything
from tests.pipeline_storm.system import BROKEN, System

_ENDS_SECONDS = 300


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
            table, number = made.choice(self._system.tables), number + 1
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


def behind_since(system: System, moment_ms: float) -> list[str]:
    """Return the parts that lack anything acknowledged before a moment; the destination that is away is none."""
    found = []
    for gateway in system.gateways:
        told = system.pipeline(gateway)
        if told["reportedMs"] <= moment_ms:
            return [f"no report since then ({gateway})"]
        if told["oldest_ms"] is not None and told["oldest_ms"] < moment_ms:
            found.append(f"{gateway} deltas")
        found += [
            f"{gateway} {part['part']} {part['name']}"
            for part in told["behind"]
            if part["sinceMs"] < moment_ms and BROKEN not in part["name"]
        ]
    return found


def healed(system: System, moment_ms: float) -> float:
    """Wait until everything acknowledged before a moment is everywhere; seconds from then."""

    def done() -> bool:
        try:
            return not behind_since(system, moment_ms)
        except (requests.RequestException, KeyError):
            return False  # the gateway is asked again

    system.wait(done, _ENDS_SECONDS, f"everything to be up to date; behind: {behind_since(system, moment_ms)}")
    return time.time() - moment_ms / 1000


def differences(system: System, acknowledged: dict[str, Counter[str]]) -> list[str]:
    """Compare what was acknowledged with history, tables, checkpoints and the destination that keeps rows."""
    found: list[str] = []

    def compare(what: str, expected: object, there: object) -> None:
        if expected != there:
            found.append(f"{what}: {expected} acknowledged, {there} there")

    config = load({"data_dir": system.data})
    with closing(open_adapter(f"sqlite://{system.folder}/copy.db")) as adapter:
        there = {(each.gateway, each.delta.table, each.delta.row_id) for each in everything(adapter)}
    copied = Counter((gateway, table) for gateway, table, _ in there)
    with Lake(config) as lake:
        history = lake.deltas
        assert history is not None
        for gateway, tables in acknowledged.items():
            for table, count in tables.items():
                own = both(holds("gateway", "=", gateway), holds("table_name", "=", table))
                rows = history.scan(own, selected_fields=("row_id",)).to_arrow()["row_id"]
                compare(f"{gateway} {table} history", count, len(rows.unique()))
                state = lake.state_of(gateway, table)
                merged = state.scan(holds("_gateway", "=", gateway)).to_arrow().num_rows if state is not None else 0
                compare(f"{gateway} {table} state", count, merged)
                compare(f"{gateway} {table} copy", count, copied[gateway, table])
            compare(f"{gateway} checkpoint", sum(tables.values()), (system.pipeline(gateway)["cut"] or {}).get("rows"))
    return found


def main() -> int:
    """Cause accidents, and judge."""
    parser = argparse.ArgumentParser(prog="scripts/pipeline-storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of accidents")
    parser.add_argument("--gateways", type=int, default=4)
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pushes of a gateway")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    report: dict[str, Any] = {"accidents": Counter(), "healing": []}
    with tempfile.TemporaryDirectory(prefix="lakesync-storm-", ignore_cleanup_errors=True) as folder:
        system = System(Path(folder), options.gateways, options.tables)
        try:
            writers = Writers(system, options.pause)
            try:
                time.sleep(options.pause)
                healed(system, time.time() * 1000)  # the first flush warms Spark up
                _cause_accidents(system, options.seconds, report)
            finally:
                writers.stop()
            # One more, after the last push.
            system.wait(system.cancel, 60, "a run to cancel")
            report["last"] = round(healed(system, time.time() * 1000), 1)
            report["deltas"] = sum(sum(tables.values()) for tables in writers.acknowledged.values())
            report["differences"] = differences(system, writers.acknowledged)
        finally:
            system.end()
    times = sorted(report.pop("healing"))
    if len(times) > 1:
        report["p50"] = round(statistics.median(times), 1)
        report["p95"] = round(statistics.quantiles(times, n=20, method="inclusive")[-1], 1)
        report["longest"] = round(times[-1], 1)
    print(json.dumps({**report, "measured": len(times)}))
    return 1 if report["differences"] or not times else 0


def _cause_accidents(system: System, seconds: float, report: dict[str, Any]) -> None:
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
            took = healed(system, moment)
            report["accidents"][accident.__name__] += 1
            report["healing"].append(took)
            print(f"{accident.__name__}: {took:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
