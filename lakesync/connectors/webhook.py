"""The webhook connector: its action, which a client requests, posts a signed event to a URL.

The signature (HMAC-SHA256 with the connector's secret) lets the receiver check that the event comes from this server.
The action dispatcher calls `WebhookActions`. The pipeline's alerts (`sensors.alerts`) are signed with `sign` too.
"""

from __future__ import annotations

import hashlib
import hmac
import string
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import requests

from lakesync.connectors.base import ConnectorConfig, object_schema
from lakesync.connectors.http_api import ApiActions, HttpApi, Params, decode_json, retry_after
from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.errors import AdapterError, ForbiddenError, LakeSyncError, RateLimitedError, ValidationError
from lakesync.model.types import Action

MAX_RESPONSE_BYTES = 1 << 20
"""Maximum size of a response. It becomes the action's result, which is sent to the client."""
_ATTEMPTS, _ATTEMPTS_SECONDS = 3, 20.0
"""Maximum attempts to send the request, and seconds for all of them."""
TIMESTAMP = "X-LakeSync-Timestamp"
"""The header with the time of a signed request, in seconds since 1970."""
SIGNATURE = "X-LakeSync-Signature"
"""The header with a request's signature; see `signature_headers`."""
_UNESCAPED = string.punctuation.replace("%", "")
"""Characters of an action id that its header contains as they are, beside letters and digits; others are
percent-encoded, because a header cannot have all of them."""


SEND = ActionDescriptor(
    "send",
    "Post an event",
    object_schema(
        {
            "event": {"type": "string", "minLength": 1, "maxLength": 200},
            "payload": {"description": "Any JSON."},
        },
        "event",
    ),
)
"""The connector's only action: its name, its title, and the JSON Schema of its params."""


class WebhookActions(ApiActions[HttpApi]):
    """The `ActionHandler` of a webhook.

    The request has the headers `X-LakeSync-Action` (the action's id, percent-encoded), `X-LakeSync-Timestamp` (seconds
    since 1970) and `X-LakeSync-Signature` (see `signature_headers`). A receiver recognises a repeated event by
    `actionId` in the body, because the signature covers the body and not the first header.

    A response that is a JSON object becomes the action's result; others give an empty one. Errors are AdapterError and
    RateLimitedError if the last attempt failed (408, 409, 425, 429, 5xx), so that the caller may retry, ForbiddenError
    and ValidationError if the receiver rejected the event.
    """

    def __init__(self, config: ConnectorConfig, clock: Callable[[], float] = time.time) -> None:
        """Store the configuration.

        Args:
            config: the connector's configuration.
            clock: returns the seconds since 1970.
        """
        self._settings = config.settings
        self._clock = clock
        connect = partial(
            HttpApi,
            config.settings["url"],
            _map_error,
            attempts=_ATTEMPTS,
            retry_timeout_s=_ATTEMPTS_SECONDS,
            hosts=config.hosts,
            max_bytes=MAX_RESPONSE_BYTES,
        )
        super().__init__(connect, [(SEND, self._send)])

    def _send(self, api: HttpApi, action: Action, params: Params, context: ActionContext) -> Mapping[str, Any]:
        """Post an event."""
        content = {"event": params["event"], "payload": params.get("payload")}
        origin = {"actionId": action.action_id, "clientId": action.client_id, "gateway": context.gateway}
        body = msgspec.json.encode({**content, **origin})
        headers = {
            "Content-Type": "application/json",
            "X-LakeSync-Action": quote(action.action_id, safe=_UNESCAPED),
            **signature_headers(self._settings["secret"], self._clock(), body),
        }
        return _object(api.call("POST", self._settings["url"], data=body, headers=headers))


def signature_headers(secret: str, now: float, body: bytes) -> dict[str, str]:
    """Return the headers by which a receiver verifies the sender and the time of a request.

    The signature is `sha256=` and the hex HMAC-SHA256 of the timestamp's text, a full stop, and the body. A receiver
    compares it with `hmac.compare_digest`, and rejects timestamps that are more than five minutes old. Alerts
    (`sensors.alerts`) have the same headers.

    Args:
        secret: the secret that the receiver has too.
        now: seconds since 1970.
        body: the request's body.
    """
    timestamp = str(int(now))
    signature = hmac.digest(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hex()
    return {TIMESTAMP: timestamp, SIGNATURE: f"sha256={signature}"}


def _object(response: requests.Response) -> Mapping[str, Any]:
    """Return a response's JSON object; an empty one for any other body, because the event was accepted."""
    try:
        body = decode_json(response)
        msgspec.json.encode(body)  # fails if it is nested almost too deeply
    except (AdapterError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _map_error(response: requests.Response) -> LakeSyncError | None:
    """Return the error for a response; None if the receiver accepted the event."""
    status = response.status_code
    if status < 300:
        return None
    reason = f"status {status}: {response.text[:200].strip() or response.reason}"
    if status == 429:
        return RateLimitedError(
            f"the webhook rejects more requests for now ({reason})", retry_after=retry_after(response)
        )
    if status in (401, 403):
        return ForbiddenError(f"the webhook rejects the credentials ({reason}): check its secret")
    if status >= 500 or status in (408, 409, 425):
        return AdapterError(f"the webhook failed ({reason})", retry_after=retry_after(response))
    return ValidationError(f"the webhook rejects the event ({reason})")
