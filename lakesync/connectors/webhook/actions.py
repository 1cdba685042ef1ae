"""A webhook that is signed: what clients send is posted to one address, which can tell that it came from here."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import requests

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.http import HttpApi, retry_after
from lakesync.connectors.webhook.offers import SEND
from lakesync.model.action_handlers import ActionContext, ActionData
from lakesync.model.errors import AdapterError, ForbiddenError, LakeSyncError, RateLimitedError, ValidationError
from lakesync.model.types import Action

MAX_ANSWER_BYTES = 1 << 20
"""An answer is an action's result, and goes to the client that asked."""


class WebhookActions:
    """The one action of a webhook.

    The request has `X-LakeSync-Action`, the action's id, by which the receiver knows a repeat; `X-LakeSync-Timestamp`,
    seconds since the epoch; and `X-LakeSync-Signature`, of `sign`.
    """

    supported_actions = (SEND,)

    def __init__(self, config: ConnectorConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock

    def execute_action(self, action: Action, context: ActionContext) -> ActionData:
        """Post it; what the receiver answers as a JSON object is the action's result.

        Raises:
            LakeSyncError: the receiver refused it, by its status; 408, 409, 425, 429 and 5xx may be tried again.
        """
        settings, at = self._config.settings, str(int(self._clock()))
        params = msgspec.json.decode(action.params)
        told = {"event": params["event"], "payload": params.get("payload")}
        sender = {"actionId": action.action_id, "clientId": action.client_id, "gateway": context.gateway}
        body = msgspec.json.encode({**told, **sender})
        api = HttpApi(
            settings["url"], _fault, attempts=3, patience_s=20.0, hosts=self._config.hosts, max_bytes=MAX_ANSWER_BYTES
        )
        api.session.headers.update(
            {
                "Content-Type": "application/json",
                "X-LakeSync-Action": action.action_id,
                "X-LakeSync-Timestamp": at,
                "X-LakeSync-Signature": sign(settings["secret"], at, body),
            }
        )
        try:
            return _object(api.call("POST", settings["url"], data=body))
        finally:
            api.close()


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC-SHA256, in hex, of the timestamp, a full stop and the body.

    A receiver compares it by `hmac.compare_digest`, and refuses timestamps that are minutes old.
    """
    return "sha256=" + hmac.digest(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hex()


def _object(answer: requests.Response) -> Mapping[str, Any]:
    try:
        body = answer.json()
    except requests.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def _fault(answer: requests.Response) -> LakeSyncError | None:
    status = answer.status_code
    if status < 300:
        return None
    said = f"status {status}: {answer.text[:200].strip() or answer.reason}"
    if status == 429:
        return RateLimitedError(f"the webhook takes no more now ({said})", retry_after=retry_after(answer))
    if status in (401, 403):
        return ForbiddenError(f"the webhook refuses us ({said}): check its secret")
    if status >= 500 or status in (408, 409, 425):
        return AdapterError(f"the webhook failed ({said})", retry_after=retry_after(answer))
    return ValidationError(f"the webhook refuses this ({said})")
