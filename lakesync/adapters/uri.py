"""Parses adapter URIs, and hides passwords in URIs that are shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from lakesync.model.errors import ConfigurationError

_PASSWORD = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"(?<=[?&])(password|secret_key)=[^&]*")


class BackendUri(msgspec.Struct, frozen=True):
    """The decoded parts of a URI."""

    scheme: str
    user: str
    password: str
    host: str
    port: int | None
    path: str
    """Without the leading slash."""
    options: dict[str, str]

    @classmethod
    def parse(cls, uri: str, options: frozenset[str] = frozenset()) -> BackendUri:
        """Parse a URI.

        Args:
            uri: the URI to parse.
            options: names of the query options that are allowed.

        Raises:
            ConfigurationError: the URI is invalid, or has an unknown option.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(f"{without_password(uri)!r} is not a valid URI: {error}") from error
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := given.keys() - options:
            raise ConfigurationError(
                f"{without_password(uri)!r} has the option {min(unknown)!r}, which is unknown "
                f"(known: {', '.join(sorted(options)) or 'none'})"
            )
        return cls(
            parts.scheme,
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            parts.hostname or "",
            port,
            unquote(parts.path).lstrip("/"),
            given,
        )


def without_password(uri: str) -> str:
    """Replace passwords and secret keys with `…` in a URI, or in a message that contains one."""
    return _SECRET_OPTION.sub(r"\1=…", _PASSWORD.sub(r"\1:…@", uri))
