"""Builds the URIs of a deployment's tables, folders and stores, for the metadata of assets. Nothing is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    from lakesync.config import Config


def table_uri(config: Config, namespace: str, table: str) -> str:
    """Return the URI of the folder with the files of a table in the lake.

    Args:
        config: the project's configuration, with the warehouse.
        namespace: the table's namespace.
        table: the table's name in it.
    """
    return f"{config.lake.warehouse.rstrip('/')}/{namespace}/{table}"


def checkpoints_uri(config: Config) -> str:
    """Return the URI of the folder with the checkpoints of all gateways."""
    folder = config.lake.checkpoints
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def staging_uri(config: Config) -> str:
    """Return the URI of the staging store, without its password."""
    return without_password(config.staging.url)
