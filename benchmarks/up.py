"""A complete `lakesync up`: seconds from a flush request to its committed snapshot, and resource usage when idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import jwt
import psutil
import requests

from benchmarks.load import percentile
from benchmarks.usage import Watched
from lakesync.model.delta import extract_delta
from lakesync.wire import json as wire_json

_COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()", "up"]
_GATEWAY = "bench"
_DELTAS = 1_000
_WAIT_SECONDS = 25
_READY_SECONDS = 300
_FIRST_SECONDS = 300
"""The first flush loads Spark's classes and starts its workers; it is reported separately."""
_LOCATION_SECONDS = 20
"""Time for Dagster to reload a code location with new tables."""
_RUNS = """query($last: Int!) {
  runsOrError(filter: {pipelineName: "flush"}, limit: $last) {
    ... on Runs {
      results {
        stats { ... on RunStatsSnapshot { enqueuedTime launchTime startTime endTime } }
        stepStats { stepKey startTime endTime }
      }
    }
  }
}"""


def flushes(folder: Path, count: int, tables: int, each: int = _DELTAS) -> dict[str, Any]:
    """Time consecutive flushes, after one to warm up.

    Args:
        folder: for the data.
        count: number of flushes.
        tables: tables over which each flush's deltas are spread.
        each: deltas per flush.
    """
    with _up(folder) as (process, told):
        asker = _Asker(told, tables, each)
        asker.register()
        first = asker.flush(_FIRST_SECONDS)
        with Watched(process.pid, family=True).measured() as used:
            seconds = [asker.flush(_FIRST_SECONDS) for _ in range(count)]
        runs = asker.runs()
        legs, whole = asker.legs(runs)
        steps = _steps(runs[:count], _spark_jobs(told["spark"]["ui_url"]))
    ordered, ended = sorted(seconds), sorted(whole)
    return {
        "requests": count,
        "tables": tables,
        "deltas": each,
        "first_seconds": first,
        "p50_seconds": percentile(ordered, 50),
        "p95_seconds": percentile(ordered, 95),
        "max_seconds": ordered[-1],
        "seconds_each": seconds,
        "p50_seconds_to_the_runs_end": percentile(ended, 50),
        "p95_seconds_to_the_runs_end": percentile(ended, 95),
        **legs,
        "steps": steps,
        "cpu_seconds_each": round(used[0].cpu_seconds / count, 2),
        "peak_mib": used[0].rss_peak_mib,
    }


def idle(folder: Path, seconds: float, rest: float, before: int) -> dict[str, Any]:
    """Measure the resource usage of an idle `lakesync up`.

    Args:
        folder: for the data.
        seconds: duration of the measurement.
        rest: seconds between the last flush and the measurement.
        before: flushes of 1,000 deltas before that, each of which leaves something in memory.
    """
    with _up(folder) as (process, told):
        asker = _Asker(told, 1)
        asker.register()
        for _ in range(before):
            asker.flush(_FIRST_SECONDS)
        time.sleep(rest)
        pids = {entry["pid"]: name for name, entry in told.items() if isinstance(entry, dict) and entry.get("pid")}
        names = {pid: name for pid, name in pids.items() if psutil.pid_exists(pid)}  # recovery has ended
        services = {process.pid: "up", **names}
        begun, spent = time.perf_counter(), _cpu(services)
        memory = [_pss(services)]
        while time.perf_counter() - begun < seconds:
            time.sleep(min(10.0, seconds))
            memory.append(_pss(services))
        took = time.perf_counter() - begun
        processes = len(_family(process.pid))
        used = {name: round((found - spent[name]) / took * 100, 2) for name, found in _cpu(services).items()}
    peak = max(memory, key=lambda each: sum(each.values()))
    return {
        "seconds": round(took, 1),
        "flushes_before": before,
        "cpu_percent": round(sum(used.values()), 2),
        "cpu_percent_of": used,
        "pss_mib": round(sum(peak.values()), 1),
        "pss_mib_of": peak,
        "processes": processes,
    }


@contextmanager
def _up(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Start `lakesync up`, and yield what it prints about itself."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_DATA_DIR": str(folder / "data"),
        "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "3600",
    }
    settings["LAKESYNC_MAINTENANCE_SCHEDULE"] = "0 0 1 1 *"  # not while something is measured
    ports = {f"LAKESYNC_{part}_PORT": "0" for part in ("GATEWAY", "DAGSTER")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(_COMMAND, env={**variables, **settings, **ports}, stdout=log, stderr=log)
    try:
        yield process, _told(process, folder)
    finally:
        process.terminate()
        process.wait(90)


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _groups(services: dict[int, str]) -> dict[str, list[psutil.Process]]:
    """Return each service's processes; `up` is the supervisor alone."""
    return {name: _family(pid) if name != "up" else [psutil.Process(pid)] for pid, name in services.items()}


def _cpu(services: dict[int, str]) -> dict[str, float]:
    """Return processor seconds so far, including ended children."""
    return {name: sum(_spent(one) for one in group) for name, group in _groups(services).items()}


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # between being listed and being asked
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _pss(services: dict[int, str]) -> dict[str, float]:
    """Return MiB of each service's processes; shared pages count once in total."""
    return {name: round(sum(_pss_of(one) for one in group) / (1 << 20), 1) for name, group in _groups(services).items()}


def _pss_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


class _Asker:
    """A client that pushes and an admin that requests flushes."""

    def __init__(self, told: dict[str, Any], tables: int, each: int = _DELTAS) -> None:
        claims = {"sub": "bench", "gw": _GATEWAY, "role": "admin", "exp": int(time.time()) + 86_400}
        self._url, self._dagster = told["gateway"]["url"], told["dagster"]["url"]
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {jwt.encode(claims, told['jwt_secret'], 'HS256')}"
        self._tables = [f"tasks{number}" for number in range(tables)]
        self._pushed, self._each = 0, each
        self._asked: list[float] = []

    def register(self) -> None:
        columns = [{"name": "title", "type": "string"}, {"name": "points", "type": "number"}]
        for table in self._tables:
            self._post(f"/admin/schema/{_GATEWAY}", {"table": table, "columns": columns})
        if len(self._tables) > 1:
            time.sleep(_LOCATION_SECONDS)

    def flush(self, within: float) -> float:
        """Push, request a flush, and wait for the snapshot. Returns the seconds since the request."""
        self._push()
        self._asked.append(time.time())
        begun = time.perf_counter()
        while time.perf_counter() - begun < within:
            answer = self._post(f"/admin/flush/{_GATEWAY}?wait={_WAIT_SECONDS}", {})
            if answer["flushed"]:
                return round(time.perf_counter() - begun, 2)
        raise RuntimeError(f"no flush was committed within {within} s")

    def legs(self, runs: list[dict[str, Any]]) -> tuple[dict[str, float], list[float]]:
        """Return medians of the phases by Dagster's event log, and seconds from each request to the end of its run."""
        found: dict[str, list[float]] = {}
        whole = []
        for asked, run in zip(reversed(self._asked), runs, strict=False):
            stats, steps = run["stats"], {step["stepKey"]: step for step in run["stepStats"]}
            carried = steps["deltas"]
            moments = {
                "asked": asked,
                "until_the_run_is_asked_for": stats["enqueuedTime"],
                "until_it_is_launched": stats["launchTime"],
                "until_it_runs": stats["startTime"],
                "until_its_first_step": carried["startTime"],
                "of_the_flush_with_what_it_tells": carried["endTime"],
                "of_what_follows_in_the_run": stats["endTime"],
            }
            whole.append(round(stats["endTime"] - asked, 2))
            ordered = list(moments.items())
            for (_, before), (name, moment) in pairwise(ordered):
                found.setdefault(f"seconds_{name}", []).append(moment - before)
        return {name: round(median(each), 2) for name, each in found.items()}, whole

    def runs(self) -> list[dict[str, Any]]:
        """Return Dagster's runs of the requested flushes, newest first, once all have ended."""
        query = {"query": _RUNS, "variables": {"last": len(self._asked)}}
        deadline = time.monotonic() + _FIRST_SECONDS
        while True:
            answer = self._session.post(f"{self._dagster}/graphql", json=query, timeout=60).json()
            runs: list[dict[str, Any]] = answer["data"]["runsOrError"]["results"]
            if all(run["stats"]["endTime"] for run in runs) or time.monotonic() > deadline:
                return runs
            time.sleep(0.5)

    def _push(self) -> None:
        now = time.time_ns() // 1_000_000
        deltas = []
        for number in range(self._pushed, self._pushed + self._each):
            values = {"title": f"Task number {number}", "points": number % 13}
            hlc = (now << 16) + number - self._pushed
            table = self._tables[number % len(self._tables)]
            delta = extract_delta(None, values, table=table, row_id=f"t-{number}", client_id="bench", hlc=hlc)
            deltas.append(json.loads(wire_json.encode_delta(delta)))  # type: ignore[arg-type]
        self._pushed += self._each
        self._post(f"/sync/{_GATEWAY}/push", {"clientId": "bench", "deltas": deltas, "lastSeenHlc": "0"})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._session.post(self._url + path, json=body, timeout=60)
        if not answer.ok:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


def _spark_jobs(ui_url: str) -> list[tuple[float, float]]:
    """Return start and end of every job that Spark remembers, in seconds since 1970."""
    with requests.Session() as session:
        session.trust_env = False
        root = f"{ui_url}/api/v1/applications"
        (application,) = session.get(root, timeout=60).json()
        jobs = session.get(f"{root}/{application['id']}/jobs", timeout=60).json()
    return [(_moment(job["submissionTime"]), _moment(job["completionTime"])) for job in jobs if "completionTime" in job]


def _moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=UTC).timestamp()


def _steps(runs: list[dict[str, Any]], jobs: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Return medians of each step: its seconds, its Spark jobs, and the seconds in which a job ran."""
    found: dict[str, list[tuple[float, int, float]]] = {}
    oldest = min((begin for begin, _ in jobs), default=0.0)
    for step in (step for run in runs for step in run["stepStats"] if step["startTime"] > oldest):
        mine = sorted(job for job in jobs if step["startTime"] <= job[0] < step["endTime"])
        busy, upto = 0.0, 0.0
        for begin, end in mine:
            busy += max(0.0, end - max(begin, upto))
            upto = max(upto, end)
        found.setdefault(step["stepKey"], []).append((step["endTime"] - step["startTime"], len(mine), busy))
    names = ("seconds", "spark_jobs", "spark_seconds")
    return {
        key: {name: round(median(part), 2) for name, part in zip(names, zip(*each, strict=True), strict=True)}
        for key, each in found.items()
    }


def _told(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """Return what `lakesync up` writes about itself when it is ready."""
    deadline = time.monotonic() + _READY_SECONDS
    place = folder / "data" / "up.json"
    while process.poll() is None and time.monotonic() < deadline:
        if place.exists():
            told: dict[str, Any] = json.loads(place.read_text("utf-8"))
            if told.get("ready"):
                return told
        time.sleep(0.5)
    raise RuntimeError(f"lakesync up did not start: {(folder / 'up.log').read_text('utf-8')[-2000:]}")
