"""Describes problems of the Dagster pipeline in sentences, for `lakesync status` and `lakesync doctor`.

The pipeline's sensors post a report to the gateway, which is `pipeline` in `/admin/metrics`. It has:

- `behind`: the parts of the pipeline (assets) that lack deltas (changes of rows) of the part upstream. Each has a kind
  (`part`) and a `name`, the number of missing `deltas`, since when they are missing (`sinceMs`), how many runs were
  requested for it (`requests`), and when the next one is requested (`retryMs`).
- `queued`: the runs that were requested more than 30 seconds ago and have not started. Each has the name of its `job`,
  its `runId`, and when it was requested (`sinceMs`).
- `reportedMs`: when the sensors posted the report.

Times named `…Ms` are in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lakesync.analysis.marks import FAILING
from lakesync.cli.output import count, duration

_MAX_NAMED = 3
"""Parts that a sentence names, at most; also the most runs that get a sentence."""
_ASSET_JOB = "__ASSET_JOB"
"""Dagster's name of the job for all assets, which the user did not define."""
_SILENT_SECONDS = 60.0
"""Sensors report every ten seconds. After this long without a report they are considered stopped."""


def problems(report: Mapping[str, Any] | None, now_ms: float) -> list[str]:
    """Return the problems of a gateway's pipeline, each as a sentence.

    Args:
        report: `pipeline` of `/admin/metrics`; None if no pipeline has ever reported.
        now_ms: wall time in milliseconds since 1970.
    """
    return [] if report is None else [*failing_parts(report), *stalled_runs(report, now_ms)]


def failing_parts(report: Mapping[str, Any]) -> list[str]:
    """Return at most one sentence, which names the parts that are still behind after `FAILING` requested runs.

    A run that succeeds brings a part up to date, so these runs failed.
    """
    failing = [part for part in report["behind"] if part["requests"] >= FAILING]
    if not failing:
        return []
    parts = ", ".join(f"{part_name(part)} ({count(part['requests'], 'run')})" for part in failing[:_MAX_NAMED])
    more = f" and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    connector = next((part["name"].partition("/")[0] for part in failing if part["part"] == "poll"), None)
    remedy = f"see `lakesync connectors test {connector}`" if connector else "the page Runs of Dagster has their errors"
    return [f"runs fail: several were requested, and these parts are still behind: {parts}{more}; {remedy}"]


def stalled_runs(report: Mapping[str, Any], now_ms: float) -> list[str]:
    """Return a sentence for each of the first three runs that have not started, and one if sensors are stopped.

    The sentences are the same for all gateways of a pipeline.

    Args:
        report: `pipeline` of `/admin/metrics`.
        now_ms: wall time in milliseconds since 1970.
    """
    sentences = []
    for run in report["queued"][:_MAX_NAMED]:
        waited = duration((now_ms - run["sinceMs"]) / 1000)
        job = job_title(run["job"])
        sentences.append(f"a run of {job} was requested {waited} ago and has not started ({run['runId']})")
    silent_seconds = (now_ms - report["reportedMs"]) / 1000
    if silent_seconds > _SILENT_SECONDS:
        sentences.append(
            f"the pipeline last reported {duration(silent_seconds)} ago: start `lakesync up`, or restart it if it has "
            "been running for a minute"
        )
    return sentences


def lag_texts(behind: Sequence[Mapping[str, Any]], now_ms: float) -> list[str]:
    """Describe how far parts are behind. Parts of one kind that are equally far behind, such as tables, are one text.

    Args:
        behind: `pipeline.behind` in `/admin/metrics`.
        now_ms: wall time in milliseconds since 1970.
    """
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for part in behind:
        key = (part["part"], part["deltas"], part["sinceMs"], part["requests"], part.get("retryMs"))
        alike.setdefault(key, []).append(part)
    texts = []
    for parts in alike.values():
        names = ", ".join(part["name"] for part in parts[:_MAX_NAMED])
        more = f" and {len(parts) - _MAX_NAMED} more" if len(parts) > _MAX_NAMED else ""
        texts.append(lag_text({**parts[0], "name": names + more}, now_ms))
    return texts


def lag_text(part: Mapping[str, Any], now_ms: float) -> str:
    """Describe how far a part is behind, and when the next run is requested if earlier ones had no effect.

    Args:
        part: an entry of `pipeline.behind` in `/admin/metrics`.
        now_ms: wall time in milliseconds since 1970.
    """
    deltas = f" by {count(part['deltas'], 'delta')}" if part["deltas"] else ""
    text = f"{part_name(part)}{deltas}, for {duration((now_ms - part['sinceMs']) / 1000)}"
    until_retry_ms = (part.get("retryMs") or 0) - now_ms
    earlier_run_had_no_effect = part["requests"] > 1  # the newest run may still be in progress
    if not earlier_run_had_no_effect or until_retry_ms <= 0:
        return text
    return f"{text}, {count(part['requests'], 'run')}, the next in {duration(until_retry_ms / 1000)}"


def job_title(name: str) -> str:
    """Return a job's display name; runs of chosen assets are runs of Dagster's unnamed job for all assets."""
    return "assets" if name == _ASSET_JOB else name


def part_name(part: Mapping[str, Any]) -> str:
    """Return the display name of a part of the pipeline, such as `deltas` or `tables todos`."""
    if part["part"] == "deltas":
        return "deltas"
    return f"{part['part']} {part['name']}".strip()
