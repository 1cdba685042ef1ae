"""A whole `lakesync up`: seconds from the request of a flush to the snapshot in which it is committed, leg by leg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import jwt
import requests

from benchmarks.report import percentile
from benchmarks.usage import Watched
from lakesync.delta import extract_delta
from lakesync.wire import json as wire_json

_COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()", "up"]
_GATEWAY = "bench"
_DELTAS = 1_000
_WAIT_SECONDS = 25
_READY_SECONDS = 300
_FIRST_SECONDS = 120
"""The first flush loads Spark's classes and starts its workers; it is told apart."""
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


def flushes(folder: Path, count: int) -> dict[str, Any]:
    """So many flushes of 1,000 deltas each, asked for one after another, and one before them that warms."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    settings = {"LAKESYNC_CONFIG": "", "LAKESYNC_DATA_DIR": str(folder / "data"), "LAKESYNC_FLUSH_AGE_SECONDS": "3600"}
    ports = {f"LAKESYNC_{part}_PORT": "0" for part in ("GATEWAY", "DAGSTER")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(_COMMAND, env={**variables, **settings, **ports}, stdout=log, stderr=log)
    try:
        asker = _Asker(_told(process, folder))
        asker.register()
        first = asker.flush(_FIRST_SECONDS)
        with Watched(process.pid, family=True).measured() as used:
            seconds = [asker.flush(_FIRST_SECONDS) for _ in range(count)]
        legs = asker.legs()
    finally:
        process.terminate()
        process.wait(90)
    ordered = sorted(seconds)
    return {
        "requests": count,
        "deltas": _DELTAS,
        "first_seconds": first,
        "p50_seconds": percentile(ordered, 50),
        "p95_seconds": percentile(ordered, 95),
        "max_seconds": ordered[-1],
        "seconds_each": seconds,
        **legs,
        "cpu_seconds_each": round(used[0].cpu_seconds / count, 2),
        "peak_mib": used[0].rss_peak_mib,
    }


class _Asker:
    """A client that pushes and an admin that asks for flushes."""

    def __init__(self, told: dict[str, Any]) -> None:
        claims = {"sub": "bench", "gw": _GATEWAY, "role": "admin", "exp": int(time.time()) + 86_400}
        self._url, self._dagster = told["gateway"]["url"], told["dagster"]["url"]
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {jwt.encode(claims, told['jwt_secret'], 'HS256')}"
        self._pushed = 0
        self._asked: list[float] = []

    def register(self) -> None:
        columns = [{"name": "title", "type": "string"}, {"name": "points", "type": "number"}]
        self._post(f"/admin/schema/{_GATEWAY}", {"table": "tasks", "columns": columns})

    def flush(self, within: float) -> float:
        """Push, ask, and wait until the snapshot is told; seconds from the request on."""
        self._push()
        self._asked.append(time.time())
        begun = time.perf_counter()
        while time.perf_counter() - begun < within:
            answer = self._post(f"/admin/flush/{_GATEWAY}?wait={_WAIT_SECONDS}", {})
            if answer["flushed"]:
                return round(time.perf_counter() - begun, 2)
        raise RuntimeError(f"no flush was committed within {within} s")

    def legs(self) -> dict[str, float]:
        """Medians of where the time went, by Dagster's event log; of what followed the snapshot too."""
        found: dict[str, list[float]] = {}
        for asked, run in zip(reversed(self._asked), self._runs(), strict=False):
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
            ordered = list(moments.items())
            for (_, before), (name, moment) in pairwise(ordered):
                found.setdefault(f"seconds_{name}", []).append(moment - before)
        return {name: round(median(each), 2) for name, each in found.items()}

    def _runs(self) -> list[dict[str, Any]]:
        """Of the flushes that were asked for, the newest first, once all of them have ended."""
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
        for number in range(self._pushed, self._pushed + _DELTAS):
            values = {"title": f"Task number {number}", "points": number % 13}
            hlc = (now << 16) + number - self._pushed
            delta = extract_delta(None, values, table="tasks", row_id=f"t-{number}", client_id="bench", hlc=hlc)
            deltas.append(json.loads(wire_json.encode_delta(delta)))  # type: ignore[arg-type]
        self._pushed += _DELTAS
        self._post(f"/sync/{_GATEWAY}/push", {"clientId": "bench", "deltas": deltas, "lastSeenHlc": "0"})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._session.post(self._url + path, json=body, timeout=60)
        if not answer.ok:
            raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


def _told(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """What `lakesync up` writes about itself once all of it is ready."""
    deadline = time.monotonic() + _READY_SECONDS
    place = folder / "data" / "up.json"
    while process.poll() is None and time.monotonic() < deadline:
        if place.exists():
            told: dict[str, Any] = json.loads(place.read_text("utf-8"))
            if told.get("ready"):
                return told
        time.sleep(0.5)
    raise RuntimeError(f"lakesync up did not start: {(folder / 'up.log').read_text('utf-8')[-2000:]}")
