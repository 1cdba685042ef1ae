"""Credentials and time limits of requests that sessions of the package `requests` send.

Every module that creates a session sets a `BearerAuth` as its `auth`. Otherwise `requests` reads `~/.netrc`, and sends
a password from there instead of the session's `Authorization` header, or to a server that needs none. After a redirect
`requests` reads that file in spite of `auth`, so sessions that follow redirects are `RedirectSession`s. Libraries that
send their requests through a session, and set no timeout, get one by `BoundedAdapter`: pyiceberg's REST catalogue and
BigQuery's client. Otherwise they would wait for ever for a server that sends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from requests import Session
from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

CONNECT_SECONDS = 10.0
"""Seconds to wait for a connection."""
RESPONSE_SECONDS = 120.0
"""Seconds without a byte from the server after which a request fails."""


class BearerAuth:
    """Adds the header `Authorization: Bearer TOKEN` to a request."""

    def __init__(self, token: str | None) -> None:
        """Store the token; with None, requests are sent without credentials."""
        self._token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        """Add the header to a request."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


no_auth = BearerAuth(None)
"""Adds no credentials."""


class RedirectSession(Session):
    """Keeps the credentials of a redirected request, and removes them if it goes to another server."""

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        """Remove the credentials from a request to another server.

        Args:
            prepared_request: the request that follows the redirect.
            response: the redirect.
        """
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


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
