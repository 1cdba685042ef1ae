"""Says out loud that a run failed: a structured log line and, where one is configured, a webhook."""

import sys

import dagster as dg
import requests
import structlog
from pydantic import SecretStr

# Configured here alone: the process is Dagster's, and so is its logging.
_log = structlog.wrap_logger(
    structlog.WriteLogger(sys.stderr),
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(),
    ],
)
_WEBHOOK_SECONDS = 10


def failure_sensor(webhook: SecretStr | None) -> dg.SensorDefinition:
    """The sensor: one line and one post for each failed run."""

    @dg.run_failure_sensor(
        name="failure_sensor",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Logs every failed run and posts it to the configured webhook.",
    )
    def tell(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        report = {
            "run_id": run.run_id,
            "job": run.job_name,
            "error": context.failure_event.message,
            "steps": [event.step_key for event in context.get_step_failure_events()],
            "tags": {key: value for key, value in run.tags.items() if not key.startswith(".")},
        }
        _log.error("run failed", **report)
        if webhook is not None:
            requests.post(webhook.get_secret_value(), json=report, timeout=_WEBHOOK_SECONDS).raise_for_status()

    return tell
