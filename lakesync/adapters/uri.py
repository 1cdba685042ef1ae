"""What the URI of a backend says, and how it is shown without what is secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from lakesync.model.errors import ConfigurationError

_PASSWORD = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"(?<=[?&])(password|secret_key)=[^&]*")


class Address(msgspec.Struct, frozen=True):
    """The parts of a URI, decoded."""

    scheme: str
    user: str
    password: str
    host: str
    port: int | None
    path: str
    """Without the leading slash."""
    options: dict[str, str]

    @classmethod
    def of(cls, uri: str, options: frozenset[str] = frozenset()) -> Address:
        """Read one.

        Args:
            uri: the URI.
            options: what may stand behind the `?`.

        Raises:
            ConfigurationError: it is no URI, or has an option that is not known.
        """
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(f"{without_password(uri)!r} is no URI: {error}") from error
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := given.keys() - options:
            raise ConfigurationError(
                f"{without_password(uri)!r} has the option {min(unknown)!r}, which is not known "
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
    """A URI for messages, or a message that has one in it."""
    return _SECRET_OPTION.sub(r"\1=…", _PASSWORD.sub(r"\1:…@", uri))
