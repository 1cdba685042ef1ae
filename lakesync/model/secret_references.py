"""References to secrets: `env:NAME`, a variable, and `file:PATH`, a file."""

from __future__ import annotations

import os
from pathlib import Path

from lakesync.model.errors import ConfigurationError

KINDS = ("env:", "file:")
"""How a reference begins."""


def follow(what: str, reference: str, folder: Path) -> str:
    """What a reference leads to.

    Args:
        what: refers to it, for the message.
        reference: as it is written.
        folder: where relative paths begin.

    Raises:
        ConfigurationError: it leads nowhere.
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
