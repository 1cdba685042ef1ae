"""Secrets in settings: hides them in URIs and messages before they are shown, and reads those given as references.

A reference is `env:NAME`, a variable, or `file:PATH`, a file. Configuration, adapters, connectors and assets call this
module.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lakesync.model.errors import ConfigurationError

SECRET_NAME = re.compile("pass|secret|token|credential|access.?key", re.IGNORECASE)
"""Names of settings and of query options that have secrets as values."""

_PASSWORD = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
"""User and password of a URI. It ends at the last `@`, because a password may contain one."""
_OPTION = re.compile(r"(?<=[?&])([^=&#]*)=([^&]*)")
"""A query option of a URI: name and value."""


def without_password(text: str) -> str:
    """Replace the password and secret options of a URI with `…`.

    In a message that contains a URI, text after it may be replaced too.

    Args:
        text: a URI, or a message with at most one.
    """
    return _OPTION.sub(_masked, _PASSWORD.sub(r"\1:…@", text))


def _masked(option: re.Match[str]) -> str:
    """Return a URI's option, `name=value`, with `…` as its value if the name is that of a secret."""
    return f"{option[1]}=…" if SECRET_NAME.search(option[1]) else option[0]


REFERENCE_PREFIXES = ("env:", "file:")
"""The prefixes by which a reference is distinguished from a plain value."""


def read_reference(what: str, reference: str, folder: Path) -> str:
    """Return the value of a reference.

    Args:
        what: the name of the setting that contains the reference, for the message.
        reference: `env:NAME` or `file:PATH`; the caller has checked that it has one of these prefixes.
        folder: the folder to which relative paths refer: that of `lakesync.toml`.

    Raises:
        ConfigurationError: the variable is not set or is empty, or the file cannot be read.
    """
    kind, _, target = reference.partition(":")
    if kind == "env":
        value = os.environ.get(target)
        if not value:
            raise ConfigurationError(f"{what} refers to the variable {target}, which is not set.")
        return value
    try:
        return (folder / Path(target).expanduser()).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{what} refers to {target}: {error.strerror}.") from error
