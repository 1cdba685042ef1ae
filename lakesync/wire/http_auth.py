"""Credentials for requests that `requests` sends: a bearer token, or none.

A session needs one of these as its `auth`. Otherwise requests replaces its `Authorization` header by a password from
`~/.netrc`, or sends that password to a server that needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests


class BearerAuth:
    """Adds `Authorization: Bearer TOKEN`."""

    def __init__(self, token: str | None) -> None:
        """Store the token; None: requests are sent without credentials."""
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the header to a request."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


no_auth = BearerAuth(None)
"""Adds no credentials."""
