"""Creates the sensors that send alerts when runs or checks begin to fail, and when they succeed again.

The code location (`lakesync_dagster.definitions`) calls this module.
"""

import json
from datetime import UTC, datetime

import dagster as dg
import msgspec

from assets.asset_metadata import LEFT_OUT
from assets.maintenance import MAINTENANCE
from sensors.alerts import Alerts, CheckChanged, RunFailed, RunRecovered

RUNS_A_TICK = 50
"""Number of ended runs that a tick reads, at most."""


class AlertCursor(msgspec.Struct):
    """The cursor of `run_failure_sensor`."""

    until: str
    """Update time of the newest run that was read, in ISO 8601."""
    failing: dict[str, list[str]] = {}
    """A run's work, as `_work` returns it → the faults of the latest run with that work, if it failed."""


def run_failure_sensor(alerts: Alerts) -> dg.SensorDefinition:
    """Create the sensor that sends an alert when a fault begins, and when a run for the same work succeeds again.

    While a part fails, its run is requested repeatedly; only the first failure is reported. The cursor passes a run
    only after its alert was delivered, so each alert is sent at least once. Dagster's own `run_failure_sensor` would
    lose an alert that could not be delivered.

    Args:
        alerts: sends the alerts.
    """

    @dg.sensor(
        name="run_failure_sensor",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs runs that begin to fail, or succeed again, and posts them to the configured webhook.",
    )
    def send(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if context.cursor is None:
            now = AlertCursor(datetime.now(UTC).isoformat())
            context.update_cursor(msgspec.json.encode(now).decode())
            return dg.SkipReason("alerts are sent for runs that fail from now on")
        known = msgspec.json.decode(context.cursor, type=AlertCursor)
        ended = dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS],
            updated_after=datetime.fromisoformat(known.until),
        )
        sent = 0
        records = context.instance.get_run_records(
            ended, limit=RUNS_A_TICK, order_by="update_timestamp", ascending=True
        )
        for record in records:
            run, before = record.dagster_run, known.failing.get(_work(record.dagster_run), [])
            if run.status is dg.DagsterRunStatus.FAILURE:
                alert = _failed(context.instance, run, alerts)
                known.failing[_work(run)] = alert.faults
                if not set(alert.faults) <= set(before):
                    alerts.send(alert)
                    sent += 1
            elif before:
                alerts.send(RunRecovered(run.run_id, run.job_name, before, alerts.run_url(run.run_id)))
                del known.failing[_work(run)]
                sent += 1
            known.until = record.update_timestamp.replace(tzinfo=UTC).isoformat()
            context.update_cursor(msgspec.json.encode(known).decode())
        failing = f"; {len(known.failing)} kinds of runs still fail" if known.failing else ""
        return dg.SkipReason((f"{sent} alerts sent" if sent else "no other run fails, or succeeds again") + failing)

    return send


def _work(run: dg.DagsterRun) -> str:
    """Return a run's work as text: job, assets and part. It is the same for all runs that do the same work."""
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    part = run.tags.get("dagster/partition", "") if run.job_name == MAINTENANCE.to_user_string() else ""
    return " ".join([run.job_name, *assets, part]).strip()


def check_failure_sensor(alerts: Alerts) -> dg.SensorDefinition:
    """Create the sensor that sends an alert when a check begins to fail, and when it passes again.

    Args:
        alerts: sends the alerts.
    """

    @dg.sensor(
        name="check_failure_sensor",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs every asset check that begins to fail, or passes again, and posts it to the webhook.",
    )
    def send(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        failing: set[str] = set(json.loads(context.cursor or "[]"))
        keys = sorted(_check_keys(context), key=str)
        newest = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        sent = 0
        for key in keys:
            record, name = newest.get(key), key.to_user_string()
            entry = record.event if record is not None else None
            evaluation = _evaluation(entry)
            if entry is None or evaluation is None or evaluation.passed == (name not in failing):
                continue
            alerts.send(_changed(evaluation, entry.run_id, alerts))
            failing ^= {name}
            context.update_cursor(json.dumps(sorted(failing)))
            sent += 1
        return dg.SkipReason(f"{sent} alerts sent" if sent else f"{len(failing)} of {len(keys)} checks still fail")

    return send


def _failed(instance: dg.DagsterInstance, run: dg.DagsterRun, alerts: Alerts) -> RunFailed:
    """Return the alert of a failed run."""
    events = [
        entry.dagster_event
        for entry in instance.all_logs(
            run.run_id, of_type={dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
        )
        if entry.dagster_event is not None
    ]
    steps = {
        str(event.step_key): str(event.step_failure_data.error_display_string).partition("\n\nStack")[0]
        for event in events
        if event.is_step_failure
    }
    error = next((event.message for event in events if event.is_run_failure), None)
    tags = {key: value for key, value in run.tags.items() if not key.startswith(".")}
    left_out: list[str] = json.loads(run.tags.get(LEFT_OUT, "[]"))
    faults = left_out or sorted(steps) or ["the run's process"]
    return RunFailed(run.run_id, run.job_name, error or "", steps, faults, tags, alerts.run_url(run.run_id))


def _evaluation(entry: dg.EventLogEntry | None) -> dg.AssetCheckEvaluation | None:
    """Return the result of a check's execution; None if it is only planned."""
    event = entry.dagster_event if entry is not None else None
    if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    return event.asset_check_evaluation_data


def _changed(evaluation: dg.AssetCheckEvaluation, run_id: str, alerts: Alerts) -> CheckChanged:
    """Return the alert of a check whose result has changed."""
    return CheckChanged(
        evaluation.asset_key.to_user_string(),
        evaluation.check_name,
        evaluation.passed,
        evaluation.description,
        run_id,
        {name: str(value.value) for name, value in evaluation.metadata.items()},
        evaluation.partition,
        alerts.run_url(run_id),
    )


def _check_keys(context: dg.SensorEvaluationContext) -> set[dg.AssetCheckKey]:
    definitions = context.repository_def
    return set(definitions.asset_graph.asset_check_keys) if definitions is not None else set()
