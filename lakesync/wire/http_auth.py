"""Credentials for requests that the package `requests` sends: a bearer token, or none.

Every module that creates a `requests` session sets one of these as the session's `auth`. Otherwise `requests` reads
`~/.netrc`, and sends a password from there instead of the session's `Authorization` header, or to a server that needs
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests


class BearerAuth:
    """Adds the header `Authorization: Bearer TOKEN` to a request."""

    def __init__(self, token: str | None) -> None:
        """Store the token; with None, requests are sent without credentials."""
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the header to a request."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


no_auth = BearerAuth(None)
"""Adds no credentials."""
