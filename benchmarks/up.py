"""Measures a complete `lakesync up`: the seconds of flushes (benchmark `flush`), and its usage when idle (`idle`)."""

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
from benchmarks.usage import MeasuredProcess
from lakesync.model.delta import extract_delta
from lakesync.wire import json as wire_json

_COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()", "up"]
"""Starts `lakesync up`."""
_GATEWAY = "bench"
_DELTAS = 1_000
"""Deltas of one flush, unless an option says otherwise."""
_WAIT_SECONDS = 25
"""How long one request waits for the flush; the next request continues to wait."""
_READY_SECONDS = 300
"""Longest time for all services to start."""
_FLUSH_SECONDS = 300
"""Longest time of a flush. The first is slow, because Spark loads its classes and starts its workers."""
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
"""The GraphQL query for the times of the newest flush runs and of their steps."""


def flushes(folder: Path, count: int, tables: int, each: int = _DELTAS) -> dict[str, Any]:
    """Time flushes, one after another. A first one, to warm up Spark, is reported separately.

    Args:
        folder: a folder for the data.
        count: number of flushes.
        tables: number of tables that each flush's deltas are spread over.
        each: deltas per flush.
    """
    with _up(folder) as (process, up_info):
        client = _FlushClient(up_info, tables, each)
        client.register()
        first = client.flush(_FLUSH_SECONDS)
        with MeasuredProcess(process.pid, family=True).measure() as used:
            seconds = [client.flush(_FLUSH_SECONDS) for _ in range(count)]
        runs = client.runs()
        phases, to_run_end = client.phases(runs)
        steps = _steps(runs[:count], _spark_jobs(up_info["spark"]["ui_url"]))
    ordered, ended = sorted(seconds), sorted(to_run_end)
    return {
        "requests": count,
        "tables": tables,
        "deltas": each,
        "first_seconds": first,
        "p50_seconds": percentile(ordered, 50),
        "p95_seconds": percentile(ordered, 95),
        "max_seconds": ordered[-1],
        "seconds_each": seconds,
        "p50_seconds_to_run_end": percentile(ended, 50),
        "p95_seconds_to_run_end": percentile(ended, 95),
        **phases,
        "steps": steps,
        "cpu_seconds_each": round(used[0].cpu_seconds / count, 2),
        "peak_mib": used[0].rss_peak_mib,
    }


def idle(folder: Path, seconds: float, rest: float, before: int) -> dict[str, Any]:
    """Measure the resource usage of an idle `lakesync up`.

    Args:
        folder: a folder for the data.
        seconds: duration of the measurement.
        rest: seconds between the last flush and the measurement.
        before: number of flushes of 1,000 deltas before that, each of which leaves something in memory.
    """
    with _up(folder) as (process, up_info):
        client = _FlushClient(up_info, 1)
        client.register()
        for _ in range(before):
            client.flush(_FLUSH_SECONDS)
        time.sleep(rest)
        pids = {entry["pid"]: name for name, entry in up_info.items() if isinstance(entry, dict) and entry.get("pid")}
        names = {pid: name for pid, name in pids.items() if psutil.pid_exists(pid)}  # the service `recovery` has ended
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
    """Start `lakesync up`, and yield its process and the content of `up.json`: the URLs and processes of services."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_DATA_DIR": str(folder / "data"),
        "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "3600",
    }
    settings["LAKESYNC_MAINTENANCE_SCHEDULE"] = "0 0 1 1 *"  # once a year, so not during the measurement
    ports = {f"LAKESYNC_{part}_PORT": "0" for part in ("GATEWAY", "DAGSTER")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(_COMMAND, env={**variables, **settings, **ports}, stdout=log, stderr=log)
    try:
        yield process, _wait_ready(process, folder)
    finally:
        process.terminate()
        process.wait(90)


def _family(pid: int) -> list[psutil.Process]:
    """Return a process and its living descendants."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _groups(services: dict[int, str]) -> dict[str, list[psutil.Process]]:
    """Return each service's processes; `up` is the supervisor alone."""
    return {name: _family(pid) if name != "up" else [psutil.Process(pid)] for pid, name in services.items()}


def _cpu(services: dict[int, str]) -> dict[str, float]:
    """Return processor seconds so far, including ended children."""
    return {name: sum(_spent(one) for one in group) for name, group in _groups(services).items()}


def _spent(process: psutil.Process) -> float:
    """Return a process's processor seconds, including ended children; 0 if it has just ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _pss(services: dict[int, str]) -> dict[str, float]:
    """Return the memory of each service's processes in MiB. A page that n processes share counts as 1/n for each."""
    return {name: round(sum(_pss_of(one) for one in group) / (1 << 20), 1) for name, group in _groups(services).items()}


def _pss_of(process: psutil.Process) -> int:
    """Return a process's memory in bytes, with shared pages divided by their users; 0 if it has just ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


class _FlushClient:
    """Pushes deltas to the gateway of a `lakesync up`, and requests flushes as an admin."""

    def __init__(self, up_info: dict[str, Any], tables: int, each: int = _DELTAS) -> None:
        """Prepare the client; `register` registers its tables.

        Args:
            up_info: the content of `up.json`.
            tables: number of tables that the deltas are spread over.
            each: deltas of each flush.
        """
        claims = {"sub": "bench", "gw": _GATEWAY, "role": "admin", "exp": int(time.time()) + 86_400}
        self._url, self._dagster = up_info["gateway"]["url"], up_info["dagster"]["url"]
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {jwt.encode(claims, up_info['jwt_secret'], 'HS256')}"
        self._tables = [f"tasks{number}" for number in range(tables)]
        self._pushed, self._each = 0, each
        self._requested_at: list[float] = []
        """Time of each flush request, in seconds since 1970."""

    def register(self) -> None:
        """Register the tables, and wait until Dagster has loaded their assets."""
        columns = [{"name": "title", "type": "string"}, {"name": "points", "type": "number"}]
        for table in self._tables:
            self._post(f"/admin/schema/{_GATEWAY}", {"table": table, "columns": columns})
        if len(self._tables) > 1:
            time.sleep(_LOCATION_SECONDS)

    def flush(self, timeout: float) -> float:
        """Push, request a flush, and wait for its snapshot. Return the seconds since the request.

        Raises:
            RuntimeError: no snapshot was committed in time.
        """
        self._push()
        self._requested_at.append(time.time())
        begun = time.perf_counter()
        while time.perf_counter() - begun < timeout:
            response = self._post(f"/admin/flush/{_GATEWAY}?wait={_WAIT_SECONDS}", {})
            if response["flushed"]:
                return round(time.perf_counter() - begun, 2)
        raise RuntimeError(f"no flush was committed within {timeout} s")

    def phases(self, runs: list[dict[str, Any]]) -> tuple[dict[str, float], list[float]]:
        """Return the median seconds of each phase of a flush, and the seconds from each request to the end of its run.

        Args:
            runs: the runs of the flushes with Dagster's times, newest first.
        """
        seconds: dict[str, list[float]] = {}
        to_run_end = []
        for requested_at, run in zip(reversed(self._requested_at), runs, strict=False):
            stats, steps = run["stats"], {step["stepKey"]: step for step in run["stepStats"]}
            flush_step = steps["deltas"]
            ends = {
                "requested": requested_at,
                "until_run_enqueued": stats["enqueuedTime"],
                "until_run_launched": stats["launchTime"],
                "until_run_started": stats["startTime"],
                "until_flush_step": flush_step["startTime"],
                "of_flush_step": flush_step["endTime"],
                "of_later_steps": stats["endTime"],
            }
            to_run_end.append(round(stats["endTime"] - requested_at, 2))
            for (_, before), (name, end) in pairwise(ends.items()):
                seconds.setdefault(f"seconds_{name}", []).append(end - before)
        return {name: round(median(each), 2) for name, each in seconds.items()}, to_run_end

    def runs(self) -> list[dict[str, Any]]:
        """Return Dagster's runs of the requested flushes, newest first, once all have ended."""
        query = {"query": _RUNS, "variables": {"last": len(self._requested_at)}}
        deadline = time.monotonic() + _FLUSH_SECONDS
        while True:
            response = self._session.post(f"{self._dagster}/graphql", json=query, timeout=60).json()
            runs: list[dict[str, Any]] = response["data"]["runsOrError"]["results"]
            if all(run["stats"]["endTime"] for run in runs) or time.monotonic() > deadline:
                return runs
            time.sleep(0.5)

    def _push(self) -> None:
        """Push the deltas of one flush."""
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
        """Post JSON to the gateway and return the response's JSON; raise RuntimeError if it is an error."""
        response = self._session.post(self._url + path, json=body, timeout=60)
        if not response.ok:
            raise RuntimeError(f"{path} failed with {response.status_code}: {response.text}")
        found: dict[str, Any] = response.json()
        return found


def _spark_jobs(ui_url: str) -> list[tuple[float, float]]:
    """Return start and end of every completed job that Spark's UI still lists, in seconds since 1970."""
    with requests.Session() as session:
        session.trust_env = False
        root = f"{ui_url}/api/v1/applications"
        (application,) = session.get(root, timeout=60).json()
        jobs = session.get(f"{root}/{application['id']}/jobs", timeout=60).json()
    return [(_moment(job["submissionTime"]), _moment(job["completionTime"])) for job in jobs if "completionTime" in job]


def _moment(text: str) -> float:
    """Return a time of Spark's UI in seconds since 1970."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=UTC).timestamp()


def _steps(runs: list[dict[str, Any]], jobs: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Return for each step of a run the medians of its seconds, its Spark jobs, and the seconds in which a job ran.

    Args:
        runs: the runs with Dagster's times of their steps.
        jobs: start and end of each Spark job. Steps before the oldest are left out, because their jobs are unknown.
    """
    found: dict[str, list[tuple[float, int, float]]] = {}
    oldest = min((begin for begin, _ in jobs), default=0.0)
    for step in (step for run in runs for step in run["stepStats"] if step["startTime"] > oldest):
        step_jobs = sorted(job for job in jobs if step["startTime"] <= job[0] < step["endTime"])
        busy, counted_until = 0.0, 0.0
        for begin, end in step_jobs:  # jobs may overlap
            busy += max(0.0, end - max(begin, counted_until))
            counted_until = max(counted_until, end)
        found.setdefault(step["stepKey"], []).append((step["endTime"] - step["startTime"], len(step_jobs), busy))
    names = ("seconds", "spark_jobs", "spark_seconds")
    return {
        key: {name: round(median(part), 2) for name, part in zip(names, zip(*each, strict=True), strict=True)}
        for key, each in found.items()
    }


def _wait_ready(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """Wait until `lakesync up` is ready, and return the content of its file `up.json`."""
    deadline = time.monotonic() + _READY_SECONDS
    file = folder / "data" / "up.json"
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists():
            up_info: dict[str, Any] = json.loads(file.read_text("utf-8"))
            if up_info.get("ready"):
                return up_info
        time.sleep(0.5)
    raise RuntimeError(f"lakesync up did not start: {(folder / 'up.log').read_text('utf-8')[-2000:]}")
