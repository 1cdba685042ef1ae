"""Shell completion of gateway ids and table names, from the local settings. Options name these functions.

Completion never calls a gateway, and never prints an error.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakesync.config import Config


def gateways(incomplete: str) -> list[str]:
    """Return the gateway ids of the settings, including `[remote] gateway`, that start with what was typed."""
    config = _load_settings()
    if config is None:
        return []
    ids = {*config.gateways, *filter(None, [config.remote.gateway])}
    return sorted(name for name in ids if name.startswith(incomplete))


def tables(incomplete: str) -> list[str]:
    """Return the tables of the schema files in the settings that start with what was typed."""
    config = _load_settings()
    names = set()
    for gateway in config.gateways.values() if config is not None else ():
        for path in gateway.schemas:
            with suppress(OSError, ValueError, KeyError, TypeError):
                names.add(str(json.loads(Path(path).read_text("utf-8"))["table"]))
    return sorted(name for name in names if name.startswith(incomplete))


def _load_settings() -> Config | None:
    """Return the configuration; None if it is invalid, because completion prints no errors."""
    from lakesync.config import load
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        return load()
    return None
