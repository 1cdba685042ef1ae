"""Where the parts of a deployment stand, as the catalogue of assets shows them; nothing is opened to tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.adapters.uri import without_password

if TYPE_CHECKING:
    from lakesync.config import Config


def table_uri(config: Config, namespace: str, table: str) -> str:
    """Where a table of the lake has its files."""
    return f"{config.lake.warehouse.rstrip('/')}/{namespace}/{table}"


def checkpoints_uri(config: Config) -> str:
    """The folder of checkpoint frames."""
    folder = config.lake.checkpoints
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def staging_uri(config: Config) -> str:
    """The staging store, without what is secret."""
    return without_password(config.staging.url)
