"""Reads secrets from references in settings: `env:NAME`, a variable, and `file:PATH`, a file.

Configuration, adapters and connectors use it.
"""

from __future__ import annotations

import os
from pathlib import Path

from lakesync.model.errors import ConfigurationError

KINDS = ("env:", "file:")
"""The prefixes of references."""


def read_reference(what: str, reference: str, folder: Path) -> str:
    """Return the value of a reference.

    Args:
        what: the setting that contains it, for the message.
        reference: `env:NAME` or `file:PATH`.
        folder: to which relative paths refer.

    Raises:
        ConfigurationError: the variable is not set, or the file cannot be read.
    """
    kind, _, target = reference.partition(":")
    if kind == "env":
        found = os.environ.get(target)
        if not found:
            raise ConfigurationError(f"{what} refers to the variable {target}, which is not set.")
        return found
    try:
        return (folder / Path(target).expanduser()).read_text("utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{what} refers to {target}: {error.strerror}.") from error
