"""URIs of the parts of a deployment, for the catalogue of assets; nothing is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.model.redaction import without_password

if TYPE_CHECKING:
    from lakesync.config import Config


def table_uri(config: Config, namespace: str, table: str) -> str:
    """Return the folder of a lake table's files.

    Args:
        config: names the warehouse.
        namespace: of the table.
        table: its name in the namespace.
    """
    return f"{config.lake.warehouse.rstrip('/')}/{namespace}/{table}"


def checkpoints_uri(config: Config) -> str:
    """Return the folder of checkpoint frames."""
    folder = config.lake.checkpoints
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def staging_uri(config: Config) -> str:
    """Return the URI of the staging store, without its password."""
    return without_password(config.staging.url)
