"""A transport adapter of `requests` whose requests do not wait for ever for a server that sends nothing.

Libraries that send their requests through a `requests` session, and set no timeout, get one by mounting it:
pyiceberg's REST catalogue and BigQuery's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

CONNECT_SECONDS = 10.0
"""Seconds to wait for a connection."""
RESPONSE_SECONDS = 120.0
"""Seconds without a byte from the server after which a request fails."""


class BoundedAdapter(HTTPAdapter):
    """Sends requests; those without a timeout get one."""

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Send a request.

        Args:
            request: the request.
            args: as in `requests`.
            options: as in `requests`; without `timeout`, or with None, the limits of this module apply.

        Raises:
            requests.Timeout: the server was silent for too long.
            requests.RequestException: as in `requests`.
        """
        if not args and options.get("timeout") is None:  # positional arguments may contain the timeout
            options["timeout"] = (CONNECT_SECONDS, RESPONSE_SECONDS)
        return super().send(request, *args, **options)


def mount(session: Any, adapter: HTTPAdapter) -> None:
    """Let a session send all its requests by an adapter."""
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
