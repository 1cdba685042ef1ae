"""Creates the sensors that send alerts to operators when runs or asset checks begin to fail, and succeed again.

A run's *faults* are what failed in it. An alert is sent when a new fault begins, not for each failed run. An alert is a
structured log line and, if a webhook is configured, a signed POST request. It is repeated until the webhook has
accepted it. The code location (`lakesync_dagster.definitions`) creates `Alerts` and the two sensors.
"""

import json
import sys
import time
from datetime import UTC, datetime

import dagster as dg
import msgspec
import requests
import stamina
import structlog
from pydantic import SecretStr

from assets.maintenance import MAINTENANCE
from assets.names import CONNECTOR, LEFT_OUT
from lakesync.connectors.webhook import signature_headers
from lakesync.wire.http_sessions import no_auth

# only this logger is configured: the process, and its other logging, are Dagster's
_log = structlog.wrap_logger(
    structlog.WriteLogger(sys.stderr),
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(),
    ],
)
_POST_SECONDS = 10
"""Timeout of a request to the webhook."""
_TRANSIENT = (408, 425, 429)
"""Statuses below 500 after which a repetition may succeed."""
RUNS_PER_TICK = 50
"""Number of ended runs that a tick reads, at most."""


class Alert(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """The JSON object that a webhook receives. Its field `kind` has the tag of the class, such as `run_failed`."""


class RunFailed(Alert, frozen=True, tag="run_failed"):
    """A run failed."""

    run_id: str
    job: str
    error: str
    steps: dict[str, str]
    """Failed step → its error."""
    faults: list[str]
    """What failed, as texts that are equal for the same fault: tables and gateways that the run continued without,
    otherwise its failed steps."""
    tags: dict[str, str]
    """The run's tags."""
    url: str | None = None
    """URL of the run's page; None if Dagster's webserver is not configured."""


class RunRecovered(Alert, frozen=True, tag="run_recovered"):
    """A run succeeded, after runs for the same work had failed."""

    run_id: str
    job: str
    faults: list[str]
    """What had failed, as in the latest alert."""
    url: str | None = None


class CheckChanged(Alert, frozen=True, tag="check_changed"):
    """A check has begun to fail, or passes again."""

    asset: str
    check: str
    passed: bool
    description: str | None
    run_id: str
    """The run that evaluated the check; empty if a sensor did."""
    metadata: dict[str, str]
    """Name → value of the result's metadata, as text."""
    partition: str | None = None
    url: str | None = None


class AlertError(Exception):
    """The webhook did not accept an alert. The sensor's next tick sends it again."""


class Alerts:
    """Sends alerts to the log and to a webhook."""

    def __init__(self, webhook: SecretStr | None, secret: SecretStr | None, dagster_url: str | None) -> None:
        """Store the webhook's address.

        Args:
            webhook: URL that receives each alert as JSON; None to only log alerts.
            secret: the key with which requests are signed, so that the webhook can verify them; None to sign none.
            dagster_url: URL of Dagster's webserver, for links to runs; None for no links.
        """
        self._webhook, self._secret = webhook, secret
        self._undelivered: set[bytes] = set()
        """Bodies of alerts that were logged and not delivered. The sensors' next ticks send them again."""
        self._dagster = dagster_url.rstrip("/") if dagster_url else None

    def run_url(self, run_id: str) -> str | None:
        """Return the URL of a run's page; None without a webserver or a run."""
        return f"{self._dagster}/runs/{run_id}" if self._dagster and run_id else None

    def send(self, alert: Alert) -> None:
        """Log an alert and post it to the webhook. A repetition after an error is not logged again.

        Raises:
            AlertError: the webhook rejected the alert, or could not be reached in three attempts.
        """
        body = msgspec.json.encode(alert)
        if body not in self._undelivered:
            _log.error("alert", **msgspec.to_builtins(alert))
        if self._webhook is None:
            return
        self._undelivered.add(body)
        try:
            for attempt in stamina.retry_context(on=_UnavailableError, attempts=3, timeout=None, wait_max=2.0):
                with attempt:
                    _post(self._webhook.get_secret_value(), body, self._secret)
        except _UnavailableError as error:
            raise AlertError(_message(error)) from None
        self._undelivered.discard(body)


class AlertCursor(msgspec.Struct):
    """The cursor of `run_failure_sensor`."""

    until: str
    """Update time of the newest run that was read, in ISO 8601."""
    failing: dict[str, list[str]] = {}
    """Kind of runs (what they do, from `_kind_of`) → the faults of the latest run of that kind, if it failed."""


def run_failure_sensor(alerts: Alerts) -> dg.SensorDefinition:
    """Create the sensor that sends an alert when a fault begins, and when a run for the same work succeeds again.

    While work fails, runs for it are requested repeatedly; only the first failure is reported. The cursor passes a run
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
        now = datetime.now(UTC)
        if context.cursor is None:
            context.update_cursor(msgspec.json.encode(AlertCursor(now.isoformat())).decode())
            return dg.SkipReason("alerts are sent for runs that fail from now on")
        cursor = msgspec.json.decode(context.cursor, type=AlertCursor)
        if datetime.fromisoformat(cursor.until) > now:  # the clock was set back
            cursor.until = now.isoformat()
            context.update_cursor(msgspec.json.encode(cursor).decode())
        ended = dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS],
            updated_after=datetime.fromisoformat(cursor.until),
            updated_before=now,  # a run with a later time would move the cursor into the future again
        )
        sent = 0
        records = context.instance.get_run_records(
            ended, limit=RUNS_PER_TICK, order_by="update_timestamp", ascending=True
        )
        for record in records:
            run, kind = record.dagster_run, _kind_of(record.dagster_run)
            known_faults = cursor.failing.get(kind, [])
            if run.status is dg.DagsterRunStatus.FAILURE:
                alert = _alert_of_run(context.instance, run, alerts)
                cursor.failing[kind] = alert.faults
                if not set(alert.faults) <= set(known_faults):
                    alerts.send(alert)
                    sent += 1
            elif known_faults:
                alerts.send(RunRecovered(run.run_id, run.job_name, known_faults, alerts.run_url(run.run_id)))
                del cursor.failing[kind]
                sent += 1
            cursor.until = record.update_timestamp.replace(tzinfo=UTC).isoformat()
            context.update_cursor(msgspec.json.encode(cursor).decode())
        failing = f"; {len(cursor.failing)} kinds of runs still fail" if cursor.failing else ""
        return dg.SkipReason((f"{sent} alerts sent" if sent else "no other run fails, or succeeds again") + failing)

    return send


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
        failing: set[str] = set(json.loads(context.cursor or "[]"))  # names of the checks that failed in the last tick
        definitions = context.repository_def
        keys = sorted(definitions.asset_graph.asset_check_keys, key=str) if definitions is not None else []
        newest = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        sent = 0
        for key in keys:
            record, name = newest.get(key), key.to_user_string()
            entry = record.event if record is not None else None
            evaluation = _evaluation(entry)
            passed_before = name not in failing
            if entry is None or evaluation is None or evaluation.passed == passed_before:
                continue
            alerts.send(_alert_of_check(evaluation, entry.run_id, alerts))
            failing ^= {name}  # add it, or remove it
            context.update_cursor(json.dumps(sorted(failing)))
            sent += 1
        return dg.SkipReason(f"{sent} alerts sent" if sent else f"{len(failing)} of {len(keys)} checks still fail")

    return send


class _UnavailableError(Exception):
    """The webhook did not answer, or answered that a repetition may succeed. The message does not contain its URL."""


def _post(url: str, body: bytes, secret: SecretStr | None) -> None:
    """Send one request. No error contains the URL, which may be a secret: stamina logs the error of each attempt.

    Raises:
        _UnavailableError: a repetition may succeed.
        AlertError: the webhook rejected the alert, redirects, or its URL is invalid.
    """
    signed = signature_headers(secret.get_secret_value(), time.time(), body) if secret is not None else {}
    headers = {"Content-Type": "application/json", **signed}
    fault, status = "", 0
    try:
        # after a redirect, requests would send a GET without the alert
        response = requests.post(
            url, data=body, headers=headers, timeout=_POST_SECONDS, auth=no_auth, allow_redirects=False
        )
        status = response.status_code
    except requests.RequestException as error:
        fault = type(error).__name__
        is_transient = isinstance(error, requests.ConnectionError | requests.Timeout)
    else:
        is_transient = status >= 500 or status in _TRANSIENT
    if 200 <= status < 300:
        return
    # not raised in the handler above: there the new error would refer to the one of requests, which contains the URL
    raise _UnavailableError(fault or status) if is_transient else AlertError(_message(fault or status))


def _message(reason: object) -> str:
    """Return the message of an AlertError."""
    return f"the alert webhook did not accept an alert ({reason}); the next tick sends it again"


def _kind_of(run: dg.DagsterRun) -> str:
    """Return what a run does as text: job, assets and, for maintenance, the partition.

    All polls of a connector do the same, whatever tables they include: after a failure, only some of them are due.
    """
    if CONNECTOR in run.tags:
        return f"{run.job_name} {run.tags[CONNECTOR]}"
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    part = run.tags.get("dagster/partition", "") if run.job_name == MAINTENANCE.to_user_string() else ""
    return " ".join([run.job_name, *assets, part]).strip()


def _alert_of_run(instance: dg.DagsterInstance, run: dg.DagsterRun, alerts: Alerts) -> RunFailed:
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
    left_out: list[str] = json.loads(run.tags.get(LEFT_OUT, "[]"))  # tables and gateways the run continued without
    faults = left_out or sorted(steps) or ["the run's process"]
    return RunFailed(run.run_id, run.job_name, error or "", steps, faults, tags, alerts.run_url(run.run_id))


def _evaluation(entry: dg.EventLogEntry | None) -> dg.AssetCheckEvaluation | None:
    """Return the result of a check's execution; None if it is only planned."""
    event = entry.dagster_event if entry is not None else None
    if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    return event.asset_check_evaluation_data


def _alert_of_check(evaluation: dg.AssetCheckEvaluation, run_id: str, alerts: Alerts) -> CheckChanged:
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
