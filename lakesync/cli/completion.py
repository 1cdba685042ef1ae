"""Shell completion of gateways and tables, from the local settings. Completion never calls a gateway."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakesync.config import Config


def gateways(incomplete: str) -> list[str]:
    """Return the ids of the declared gateways and of `[remote] gateway` that start with a prefix."""
    config = _load_settings()
    if config is None:
        return []
    known = {*config.gateways, *filter(None, [config.remote.gateway])}
    return sorted(name for name in known if name.startswith(incomplete))


def tables(incomplete: str) -> list[str]:
    """Return the tables of the declared schemas that start with a prefix."""
    config = _load_settings()
    found = set()
    for gateway in config.gateways.values() if config is not None else ():
        for path in gateway.schemas:
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.add(str(json.loads(Path(path).read_text("utf-8"))["table"]))
    return sorted(name for name in found if name.startswith(incomplete))


def _load_settings() -> Config | None:
    """Return the configuration; None if it is invalid, because completion prints no errors."""
    from lakesync.config import load
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        return load()
    return None
