"""Sends alerts to operators: a structured log line and, if a webhook is configured, a signed POST request.

The sensors in `sensors.failure` call it.
"""

import sys
import time

import msgspec
import requests
import stamina
import structlog
from pydantic import SecretStr

from lakesync.connectors.webhook import sign

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
TIMESTAMP = "X-LakeSync-Timestamp"
SIGNATURE = "X-LakeSync-Signature"


class Alert(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """The JSON object that a webhook receives. `kind` names its type."""


class RunFailed(Alert, frozen=True, tag="run_failed"):
    """A run failed."""

    run_id: str
    job: str
    error: str
    steps: dict[str, str]
    """Failed step → its error."""
    faults: list[str]
    """What failed: the tables and gateways that the run continued without, otherwise its failed steps."""
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
    metadata: dict[str, str]
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
        self._dagster = dagster_url.rstrip("/") if dagster_url else None

    def run_url(self, run_id: str) -> str | None:
        """Return the URL of a run's page; None without a webserver or a run."""
        return f"{self._dagster}/runs/{run_id}" if self._dagster and run_id else None

    def send(self, alert: Alert) -> None:
        """Log an alert and post it to the webhook.

        Raises:
            AlertError: the webhook could not be reached, or rejected the alert, three times.
        """
        _log.error("alert", **msgspec.to_builtins(alert))
        if self._webhook is None:
            return
        body = msgspec.json.encode(alert)
        headers = {"Content-Type": "application/json", **signed(body, self._secret)}
        try:
            for attempt in stamina.retry_context(on=requests.RequestException, attempts=3, wait_max=2.0):
                with attempt:
                    response = requests.post(
                        self._webhook.get_secret_value(), data=body, headers=headers, timeout=_POST_SECONDS
                    )
                    response.raise_for_status()
        except requests.RequestException as error:
            status = error.response.status_code if error.response is not None else type(error).__name__
            # The error contains the URL, which may be a secret.
            message = f"the alert webhook did not accept an alert ({status}); the next tick sends it again"
            raise AlertError(message) from None


def signed(body: bytes, secret: SecretStr | None) -> dict[str, str]:
    """Return the headers by which a receiver verifies the sender and the time of a request.

    The signature is `sha256=` and the hex HMAC-SHA256 of the timestamp's text, a full stop, and the body. Webhook
    connectors sign in the same way.

    Args:
        body: the request's body.
        secret: the secret that the receiver has too; None for no headers.
    """
    if secret is None:
        return {}
    stamp = str(int(time.time()))
    return {TIMESTAMP: stamp, SIGNATURE: sign(secret.get_secret_value(), stamp, body)}
