"""Whether a gateway's pipeline keeps up, in sentences, from what `/admin/metrics` reports of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakesync.analysis.marks import FAILING
from lakesync.cli.output import ago

_SHOWN = 3
SILENT_SECONDS = 60.0
"""Sensors report every ten seconds; after this long without a report they do not run."""


def troubles(told: Mapping[str, Any] | None, now_ms: float) -> list[str]:
    """Return what is wrong with the pipeline, each as a sentence; nothing where it keeps up.

    Args:
        told: `pipeline` of `/admin/metrics`; None where no pipeline ever reported.
        now_ms: server wall time.
    """
    return [] if told is None else [*failing_parts(told), *idle_runs(told, now_ms)]


def failing_parts(told: Mapping[str, Any]) -> list[str]:
    """Return for which parts of a gateway runs fail, as a sentence at most."""
    failing = [part for part in told["behind"] if part["requests"] >= FAILING]
    if not failing:
        return []
    parts = ", ".join(f"{part_name(part)} ({part['requests']} runs)" for part in failing[:_SHOWN])
    more = f" and {len(failing) - _SHOWN} more" if len(failing) > _SHOWN else ""
    return [f"runs fail: requested again and again, and still behind: {parts}{more}"]


def idle_runs(told: Mapping[str, Any], now_ms: float) -> list[str]:
    """Return which runs cannot start, and whether the pipeline's sensors run; the same for every gateway."""
    found = []
    for run in told["queued"][:_SHOWN]:
        waited = ago((now_ms - run["sinceMs"]) / 1000)
        found.append(f"a run of {run['job']} was requested {waited} ago and has not started ({run['runId']})")
    silent = (now_ms - told["reportedMs"]) / 1000
    if silent > SILENT_SECONDS:
        found.append(f"the pipeline last reported {ago(silent)} ago: its sensors do not run")
    return found


def part_name(part: Mapping[str, Any]) -> str:
    """Return what people call a part of the pipeline."""
    if part["part"] == "deltas":
        return "deltas"
    return f"{part['part']} {part['name']}".strip()
