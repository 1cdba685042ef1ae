"""Parses adapter URIs, such as `mysql://USER:PASSWORD@HOST/DATABASE`. Errors name the URI without its password.

An adapter gives access to a database or object store. Those for MySQL, BigQuery and S3 call `BackendUri.parse`, those
for SQLite and local folders `path_of`; the drivers of the others parse their URIs themselves.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import REFERENCE_PREFIXES, read_reference, without_password


class BackendUri(msgspec.Struct, frozen=True):
    """The percent-decoded parts of a URI; a missing part is empty, a missing port None."""

    user: str
    password: str
    host: str
    port: int | None
    path: str
    """Without the leading slash."""
    options: dict[str, str]
    """The query's options, references (`env:NAME`, `file:PATH`) resolved."""

    @classmethod
    def parse(cls, uri: str, allowed_options: frozenset[str] = frozenset()) -> BackendUri:
        """Parse a URI.

        Args:
            uri: the URI to parse.
            allowed_options: the names of the query options that the backend knows.

        Raises:
            ConfigurationError: the URI or its endpoint is invalid, it has an unknown option, or a reference cannot be
                resolved.
        """
        parts, port = split_uri(uri)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := options.keys() - allowed_options:
            raise ConfigurationError(
                f"{without_password(uri)!r} has the option {min(unknown)!r}, which is unknown "
                f"(known: {', '.join(sorted(allowed_options)) or 'none'})"
            )
        for name, value in options.items():
            if value.startswith(REFERENCE_PREFIXES):
                options[name] = read_reference(f"{name} of {parts.scheme}://{parts.hostname or ''}", value, Path())
        if not options.get("endpoint", "http://").startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{without_password(uri)!r} has an endpoint that is not a URL: write http://HOST:PORT or https://HOST"
            )
        return cls(
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            parts.hostname or "",
            port,
            unquote(parts.path).lstrip("/"),
            options,
        )


def split_uri(uri: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URI, and its port; None if it names no port.

    Raises:
        ConfigurationError: the URI is invalid, or has a fragment. The message contains no password.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:  # its message may contain a part of the password
        raise ConfigurationError(
            f"{without_password(uri)!r} is not a valid URI: check its host and port, and write /, ?, #, @ and the"
            " like in the password as %2F, %3F, %23, %40"
        ) from None
    if parts.fragment:
        raise ConfigurationError(f"the adapter URI {without_password(uri)!r} ends at its #: write # as %23")
    return parts, port


def path_of(uri: str) -> Path:
    """Return the absolute path of a `file:` or `sqlite:` URI.

    Raises:
        ConfigurationError: the URI has a host or an option, or no absolute path.
    """
    parts, _ = split_uri(uri)
    if parts.query:
        raise ConfigurationError(
            f"the adapter URI {without_password(uri)!r} has an option, but {parts.scheme}: has no options: write ? in "
            "a path as %3F"
        )
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ConfigurationError(
            f"the adapter URI {without_password(uri)!r} has no absolute path: write {parts.scheme}:///ABSOLUTE/PATH"
        )
    return Path("/") / unquote(parts.path).lstrip("/")
